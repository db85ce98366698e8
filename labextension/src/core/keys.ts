/**
 * The keys of a card. The card keeps keys without a modifier, because in a notebook `b` would insert a cell. Escape and Tab leave the
 * card, and Enter with a modifier runs its cell.
 */

import { button, h } from './dom';
import type { RunCell } from './host';
import type { Store } from './store';
import type { Mounted } from './views/spec';

const KEYS: readonly [string, string][] = [
  ['← →', 'next or previous tab (when a tab has the focus)'],
  ['Tab', 'next control'],
  ['/', 'search in a listing'],
  ['n p', 'next or previous difference (in a comparison)'],
  ['Shift Enter', 'run the cell and select the next one (with Ctrl: stay; with Alt: insert a cell)'],
  ['Escape', 'back to the cell'],
  ['?', 'show or hide this list'],
];

/** The keys of a whole card. A docked view does not have them. */
export const CARD_KEYS: readonly [string, string][] = [
  ['f', 'projector mode: one view over the whole screen (on or off)'],
];

/** The list of keys, and the button that shows it. */
export interface KeyHelp {
  list: HTMLElement;
  toggle: HTMLButtonElement;
  flip(): void;
}

/** Creates the list of the keys of the open view, of the card, and `more`. */
export function keyHelp(active: () => Mounted | undefined, more: typeof KEYS = []): KeyHelp {
  const list = h('div.bnb-keys', { hidden: true, role: 'list', 'aria-label': 'Keys' });
  const flip = (): void => {
    list.hidden = !list.hidden;
    toggle.setAttribute('aria-expanded', String(!list.hidden));
    const all = [...(active()?.keys ?? []), ...KEYS, ...more];
    list.replaceChildren(
      ...all.map(([key, what]) =>
        h('div.bnb-key-row', { role: 'listitem' }, h('kbd', {}, key), h('span', {}, what)),
      ),
    );
  };
  const toggle = button('?', flip, {
    title: 'Keys of this card',
    'aria-label': 'Keys',
    'aria-expanded': 'false',
  });
  toggle.classList.add('bnb-help');
  return { list, toggle, flip };
}

/** How the keys with Enter run a cell, as in JupyterLab. */
function runOf(event: KeyboardEvent): RunCell | null {
  if (event.key !== 'Enter' || event.target instanceof HTMLTextAreaElement) {
    return null; // a text field for several lines keeps its keys
  }
  return event.shiftKey ? 'next' : event.ctrlKey || event.metaKey ? 'stay' : event.altKey ? 'insert' : null;
}

const STEP = /^(Arrow|Page|Home$|End$)/;

/** Whether a control itself uses a key: a field or a list of choices all, a slider those that move it. */
function usesKey(target: EventTarget | null, key: string): boolean {
  if (!(target instanceof HTMLInputElement)) {
    return target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;
  }
  const uses: Record<string, boolean> = {
    range: STEP.test(key),
    radio: STEP.test(key) || key === ' ',
    checkbox: key === ' ',
  };
  return uses[target.type] ?? true;
}

/** Handles the keys of a card or of a docked view. `more` gets those that the view does not use. */
export function listenKeys(
  root: HTMLElement,
  store: Store,
  active: () => Mounted | undefined,
  onHelp: () => void,
  more: (event: KeyboardEvent) => boolean = () => false,
): void {
  root.addEventListener('keydown', (event) => {
    const run = runOf(event);
    if (run && store.host.runCell) {
      store.host.runCell(run);
      event.preventDefault();
      event.stopPropagation();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if ((!usesKey(event.target, event.key) || event.key === 'Escape') && !event.defaultPrevented) {
      if (event.key === '?') {
        onHelp();
        event.preventDefault();
      } else if (active()?.key?.(event) || more(event)) {
        event.preventDefault();
      }
    }
    if (event.defaultPrevented || (event.key !== 'Escape' && event.key !== 'Tab')) {
      event.stopPropagation();
    }
  });
}
