/**
 * Projector mode: one view of a card fills the window, in large type and in strong colours, and the keyboard does everything.
 *
 * The card becomes a popover, as a maximised pane does: it stays in its place in the document, and no style of the notebook clips it. The
 * CSS property `zoom` enlarges type, plots and pictures alike. Where the browser permits it, the page goes full screen; a link that opens
 * the mode cannot ask for that, and the card covers the window. Keys count wherever the focus is, because the card covers all else;
 * but a field, a list of choices and a slider keep the keys that they use, and a listing keeps the arrows, which move its cursor.
 */

import { button, h } from './dom';
import { keepFocusInside } from './maximise';
import { setPictureZoom } from './plot/canvas';
import type { Store } from './store';
import type { Mounted } from './views/spec';

/** CSS pixels of a window in which the type has its ordinary size. The ratio of the real window to it is the enlargement. */
const ORDINARY = { width: 900, height: 500 };
const LEAST = 1.25;
const MOST = 6;
/** The factor of one press of + or −. */
const STEP = 1.15;

/** The user's choice of the size, as a power of STEP. It holds for all cards of the page. */
let chosenSize = 0;

/** What the mode needs of a card. */
export interface Projected {
  root: HTMLElement;
  store: Store;
  active(): Mounted | undefined;
  /** Opens the next or the previous tab that has content. */
  stepTab(by: 1 | -1): void;
}

const projectors = new WeakMap<Element, Projector>();
/** The card that covers the window. */
let current: Projector | null = null;

/** Switches the projector mode of a card on or off. Returns whether the element is a card. */
export function toggleProjector(card: Element): boolean {
  const found = projectors.get(card);
  found?.set(!found.on, true);
  return found !== undefined;
}

/** The projector mode of one card. */
export class Projector {
  readonly button = button('Projector', () => this.set(!this.on, true), {
    title: 'Show one view over the whole screen, in large type (key f)',
    'data-tool': 'projector',
    'aria-pressed': 'false',
  });
  /** The line of keys at the foot. */
  readonly hints = h('div.bnb-projector-keys', { role: 'list', 'aria-label': 'Keys of the projector mode' });
  on = false;
  private wholeScreen = false;
  private readonly stops: (() => void)[] = [];

  constructor(private readonly card: Projected) {
    projectors.set(card.root, this);
    this.hints.hidden = true;
  }

  /**
   * Enters or leaves the mode; another card leaves it first. `wholeScreen`: asks for the whole screen, which the browser permits after a
   * click or a key. `back`: the focus and the page return to the card that leaves.
   */
  set(on: boolean, wholeScreen: boolean, back = true): void {
    if (on === this.on) {
      return;
    }
    if (on && current) {
      this.wholeScreen = current.wholeScreen; // the page stays as it is
      current.wholeScreen = false;
      current.set(false, false, false);
    }
    current = on ? this : null;
    this.on = on;
    if (on && wholeScreen && document.fullscreenEnabled && !document.fullscreenElement) {
      this.wholeScreen = true;
      document.documentElement.requestFullscreen({ navigationUI: 'hide' }).then(
        () => (this.on ? this.cover() : void document.exitFullscreen()), // again, above the page in full screen
        () => (this.wholeScreen = false), // refused, for example in a frame: the card covers the window
      );
    }
    const { root } = this.card;
    root.classList.toggle('bnb-projector', on);
    this.button.setAttribute('aria-pressed', String(on));
    this.button.textContent = on ? 'Leave' : 'Projector';
    this.hints.hidden = !on;
    if (on) {
      this.enter();
    } else {
      this.leave(back);
    }
  }

  /** Handles a key of a card. Returns whether it used the key. */
  key(event: KeyboardEvent): boolean {
    if (event.key === 'f') {
      this.set(!this.on, true);
      return true;
    }
    if (!this.on) {
      return false;
    }
    const step = STEPS[event.key];
    const size = SIZES[event.key];
    if (step) {
      this.card.active()?.advance?.(step);
    } else if (event.key === 't' || event.key === 'T') {
      this.card.stepTab(event.key === 't' ? 1 : -1);
      this.paintHints();
    } else if (size) {
      chosenSize += size;
      this.fit();
    } else if (event.key === 'Escape') {
      this.set(false, false);
    } else {
      return false;
    }
    return true;
  }

  /** Names the keys of the open view and of the mode. */
  paintHints(): void {
    if (!this.on) {
      return;
    }
    const view = this.card.active();
    const own = view?.keys ?? [];
    const moves = own.find(([keys]) => keys === 'j k' || keys === '← →');
    const all: (readonly [string, string])[] = [
      ...(view?.advance ? [['← →', moves?.[1] ?? 'previous or next step'] as const] : []),
      ...own.filter((one) => one !== moves),
      ['t T', 'next or previous tab'],
      ['+ −', 'size'],
      ['?', 'all keys'],
      ['Esc', 'leave'],
    ];
    this.hints.replaceChildren(
      ...all.map(([keys, what]) =>
        h('span.bnb-projector-key', { role: 'listitem' }, h('kbd', {}, keys), ` ${what}`),
      ),
    );
  }

  dispose(): void {
    this.set(false, false, false);
  }

  private enter(): void {
    const { root } = this.card;
    root.setAttribute('popover', 'manual');
    this.cover();
    this.fit();
    this.paintHints();
    const listen = <K extends keyof WindowEventMap>(
      type: K,
      heard: (event: WindowEventMap[K]) => void,
      capture = false,
    ): void => {
      window.addEventListener(type, heard, capture);
      this.stops.push(() => window.removeEventListener(type, heard, capture));
    };
    listen('resize', () => this.fit());
    listen('keydown', (event) => this.earlyKey(event), true);
    const screenChanged = (): void => {
      if (this.wholeScreen && !document.fullscreenElement) {
        this.wholeScreen = false;
        this.set(false, false); // the browser's own Escape
      }
    };
    document.addEventListener('fullscreenchange', screenChanged);
    this.stops.push(() => document.removeEventListener('fullscreenchange', screenChanged));
    this.focusView();
  }

  private leave(back: boolean): void {
    const { root } = this.card;
    this.stops.splice(0).forEach((stop) => stop());
    if (root.hasAttribute('popover')) {
      root.hidePopover?.();
      root.removeAttribute('popover');
    }
    root.style.removeProperty('--bnb-projector-zoom');
    this.redraw(1);
    if (this.wholeScreen && document.fullscreenElement) {
      void document.exitFullscreen();
    }
    this.wholeScreen = false;
    if (back) {
      this.button.focus();
      root.scrollIntoView?.({ block: 'nearest' });
    }
  }

  /** Puts the card above all else of the page. */
  private cover(): void {
    const { root } = this.card;
    if (this.on && root.isConnected) {
      root.hidePopover?.();
      root.showPopover?.();
    }
  }

  /** Gives the focus to the open view, whose keys then work. */
  private focusView(): void {
    this.card.root.querySelector<HTMLElement>('.bnb-panel:not([hidden])')?.focus({ preventScroll: true });
  }

  /** Chooses the enlargement for the window. */
  private fit(): void {
    const ratio = Math.min(window.innerWidth / ORDINARY.width, window.innerHeight / ORDINARY.height);
    const zoom = Math.max(LEAST, Math.min(MOST, ratio * STEP ** chosenSize));
    this.card.root.style.setProperty('--bnb-projector-zoom', zoom.toFixed(3));
    this.redraw(zoom);
  }

  /** Lets the pictures draw themselves again, in the present size and colours. */
  private redraw(zoom: number): void {
    setPictureZoom(zoom);
    this.card.store.setDisplay({ ...this.card.store.display });
  }

  /**
   * Handles keys before the rest of the page: those outside of the card, for example after a repaint removed the element with the focus, and
   * the Page keys of presenters, which a listing would use.
   */
  private earlyKey(event: KeyboardEvent): void {
    const { root, active } = this.card;
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (event.target instanceof Element && root.contains(event.target)) {
      const page = event.key.startsWith('Page') && !event.shiftKey && event.target.closest('.cm-content');
      if (event.key === 'Tab') {
        keepFocusInside(root, event);
      } else if (page && active()?.advance) {
        this.key(event);
        event.preventDefault();
        event.stopPropagation();
      }
      return;
    }
    event.stopPropagation();
    if (event.key === 'Tab') {
      this.focusView();
      event.preventDefault();
    } else if (active()?.key?.(event) || this.key(event)) {
      event.preventDefault();
    }
  }
}

const STEPS: Readonly<Record<string, 1 | -1>> = { PageDown: 1, PageUp: -1, ArrowRight: 1, ArrowLeft: -1 };
const SIZES: Readonly<Record<string, number>> = { '+': 1, '=': 1, '-': -1, '−': -1 };
