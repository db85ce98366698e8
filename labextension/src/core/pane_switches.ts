/** The switches of a pane: line wrap, one or two columns for a comparison, and maximise. */

import { button, h } from './dom';
import { maximiseButton } from './maximise';
import type { Display, Store } from './store';

const SWITCHES: Record<'wrap' | 'unified', [label: string, tooltip: string]> = {
  wrap: ['Wrap', 'Break long lines instead of scrolling sideways'],
  unified: ['Unified', 'Show a comparison in one column instead of side by side'],
};

/** Creates the switches of a pane. `keys` are the settings of listings that it offers. */
export function paneSwitches(
  store: Store,
  pane: HTMLElement,
  ...keys: readonly ('wrap' | 'unified')[]
): HTMLElement {
  const buttons = keys.map((key) => {
    const [label, title] = SWITCHES[key];
    const change = (): void => store.setDisplay({ ...store.display, [key]: !store.display[key] });
    return button(label, change, { title, 'data-display': key, 'aria-pressed': String(store.display[key]) });
  });
  return h('span.bnb-pane-switches', {}, ...buttons, maximiseButton(pane));
}

/** Shows the settings of the store on all switches in an element. */
export function paintSwitches(element: HTMLElement, display: Display): void {
  for (const one of element.querySelectorAll<HTMLElement>('[data-display]')) {
    one.setAttribute('aria-pressed', String(display[one.dataset.display as keyof Display]));
  }
}

/** A list beside a pane. The button of `split` folds the list, so that the pane has the whole width. */
export interface Split {
  element: HTMLElement;
  toggle: HTMLButtonElement;
}

/** Puts a list beside a pane. `what` names the list: "passes". */
export function split(list: HTMLElement, pane: HTMLElement, what: string): Split {
  const element = h('div.bnb-split', {}, list, pane);
  const toggle = button('', () => fold(!list.hidden));
  const fold = (hidden: boolean): void => {
    list.hidden = hidden;
    element.classList.toggle('bnb-folded', hidden);
    toggle.textContent = hidden ? '⟩' : '⟨';
    toggle.title = `${hidden ? 'Show' : 'Hide'} the list of ${what}`;
    toggle.setAttribute('aria-label', toggle.title);
    toggle.setAttribute('aria-expanded', String(!hidden));
  };
  fold(false);
  return { element, toggle };
}
