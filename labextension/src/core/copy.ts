/** Copies texts to the clipboard of the browser, and says whether that worked. */

import { button, h } from './dom';
import type { Host } from './host';

/** Copies a text. Rejects if the browser does not allow it. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Browsers give the clipboard to pages with encryption and to localhost only; the older command works in the others.
  const field = h('textarea', { 'aria-hidden': 'true', readonly: true });
  const focused = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand('copy');
  field.remove();
  (focused as HTMLElement | null)?.focus?.();
  if (!copied) {
    throw new Error('the browser gives this page no clipboard');
  }
}

/** How long the button says what happened, in milliseconds. */
const SAID_MS = 1500;

/** Creates a button that copies what `get` returns; null: there is nothing to copy. */
export function copyButton(
  host: () => Host,
  get: () => Promise<string | null>,
  title: string,
): HTMLButtonElement {
  const label = 'Copy';
  const say = (text: string): void => {
    made.textContent = text;
    window.setTimeout(() => (made.textContent = label), SAID_MS);
  };
  const run = async (): Promise<void> => {
    const text = await get();
    if (text !== null) {
      await host().copy?.(text);
      say('Copied');
    }
  };
  const made = button(label, () => void run().catch(() => say('Not copied')), {
    title,
    'aria-live': 'polite',
  });
  return made;
}
