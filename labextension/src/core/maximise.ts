/**
 * Shows a pane over the whole window. The pane becomes a popover, so it stays in its place in the document, and no style of the
 * notebook (overflow, containment) clips it. Escape and the same button restore it.
 */

import { button } from './dom';

const FOCUSABLE = 'button, input, select, textarea, [tabindex="0"]';

/** Creates the button that maximises and restores a pane. */
export function maximiseButton(pane: HTMLElement): HTMLButtonElement {
  const label = (): void => {
    const large = pane.classList.contains('bnb-maximised');
    toggle.textContent = large ? 'Restore' : 'Maximise';
    toggle.title = large ? 'Back to the card (Escape)' : 'Show this pane over the whole window';
    toggle.setAttribute('aria-pressed', String(large));
  };
  const set = (large: boolean): void => {
    pane.classList.toggle('bnb-maximised', large);
    if (large) {
      pane.setAttribute('popover', 'manual');
      pane.showPopover?.();
    } else {
      pane.hidePopover?.();
      pane.removeAttribute('popover');
    }
    label();
    toggle.focus();
  };
  const toggle = button('', () => set(!pane.classList.contains('bnb-maximised')));
  pane.addEventListener('keydown', (event) => {
    if (!pane.classList.contains('bnb-maximised')) {
      return;
    }
    if (event.key === 'Escape' && !event.defaultPrevented) {
      set(false);
      event.preventDefault();
      event.stopPropagation();
    } else if (event.key === 'Tab') {
      keepFocusInside(pane, event);
    }
  });
  label();
  return toggle;
}

/** Moves the focus from the last control to the first one and back, because the pane covers all other controls. */
export function keepFocusInside(pane: HTMLElement, event: KeyboardEvent): void {
  const all = [...pane.querySelectorAll<HTMLElement>(FOCUSABLE)].filter(
    (e) => e.tabIndex >= 0 && !(e as HTMLButtonElement).disabled && e.offsetParent !== null,
  );
  const [from, to] = event.shiftKey ? [all[0], all[all.length - 1]] : [all[all.length - 1], all[0]];
  if (from && document.activeElement === from) {
    to.focus();
    event.preventDefault();
  }
}
