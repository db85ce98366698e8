/**
 * Mounts one view of a kernel, or the whole card, for a widget: the same views as those of the card, with their state as named values.
 *
 * `show` moves the view to a target, a stage, an op and so on. `onShown` hears what the user selects in it. A selection is a line, an op,
 * or both; a line or an op that is set alone is shown alone.
 */

import { fetchDeferred } from './deferred';
import { h } from './dom';
import type { Host } from './host';
import { listenKeys } from './keys';
import { disposeKnobs } from './knob_session';
import { mount, paintNotice, updateViews } from './mount';
import type { Document } from './schema';
import type { ShownParts } from './shown_parts';
import { stageDiff } from './stage_diff';
import { type Selection, Store } from './store';
import { VIEWS } from './views';
import type { Mounted, ViewSpec } from './views/spec';

/** What a view shows: the traits of its widget. */
export interface ViewState extends ShownParts {
  target: string | null;
  /** The number of the stage. It follows `stage`. */
  stage_index: number | null;
  op: number | null;
  line: number | null;
}

/** A mounted view. */
export interface MountedView {
  /** The shown document. The view itself replaces it after a request to the kernel. */
  readonly document: Document;
  /** Shows another document. */
  update(doc: Document): void;
  connect(host: Host): void;
  /** Moves the view. Ignores a target, a stage or a program that the document does not have. */
  show(state: Partial<ViewState>): void;
  dispose(): void;
}

/** The key of the whole card. */
export const CARD = 'card';

/** The views that are no tab of the card. */
const MORE: readonly ViewSpec[] = [stageDiff];

/** Mounts the view with a key. An unknown key, from a newer kernel, is named in the place of the view. */
export function mountView(
  element: HTMLElement,
  key: string,
  doc: Document,
  host: Host,
  state: Partial<ViewState>,
  onShown: (state: Partial<ViewState>) => void,
): MountedView {
  const store = new Store(doc, host);
  let shown: Partial<ViewState> = { ...state };
  const traits = new TraitLink(store, (told) => {
    shown = { ...shown, ...told };
    onShown(told);
  });
  traits.show(state);
  traits.listen();
  const mounted = key === CARD ? mount(element, doc, host, store) : mountSingle(element, key, store);
  return {
    get document() {
      return store.doc;
    },
    update(next) {
      store.update(next);
      const { target, stage, compared_with, program, iteration } = shown;
      traits.show(defined({ target, stage, compared_with, program, iteration }));
    },
    connect: (next) => store.connect(next),
    show(next) {
      shown = { ...shown, ...next };
      traits.show(next);
    },
    dispose() {
      traits.dispose();
      mounted.dispose();
    },
  };
}

function defined(state: Partial<ViewState>): Partial<ViewState> {
  return Object.fromEntries(Object.entries(state).filter(([, value]) => value !== undefined));
}

/** Translates between the values of a widget's traits and the store. */
class TraitLink {
  private readonly stops: (() => void)[] = [];
  /** The values that the widget has. */
  private readonly told: Partial<ViewState> = {};
  private pinned: Selection | null = null;

  constructor(
    private readonly store: Store,
    private readonly onShown: (state: Partial<ViewState>) => void,
  ) {}

  listen(): void {
    const stop = this.store.subscribe((change) => {
      const { pinned } = this.store;
      if (change === 'selection' && pinned !== this.pinned) {
        this.pinned = pinned;
        if (pinned?.from !== 'widget') {
          this.tell({ op: pinned?.op ?? null, line: pinned?.lines[0] ?? null });
        }
      } else if (change === 'view') {
        this.tell({ target: this.store.current.target ?? null });
      }
    });
    const stopTold = this.store.shown.onTell((parts) => {
      const index = this.store.stages.findIndex((stage) => stage.name === parts.stage);
      this.tell({ ...parts, ...(index >= 0 && { stage_index: index }) });
    });
    this.stops.push(stop, stopTold);
  }

  dispose(): void {
    this.stops.splice(0).forEach((stop) => stop());
  }

  show(state: Partial<ViewState>): void {
    const { target, stage_index: index, op, line, ...parts } = state;
    const { store } = this;
    Object.assign(this.told, state);
    if (target) {
      store.selectView(store.doc.views.findIndex((view) => view.target === target));
    }
    const named = parts.stage === undefined && index !== null && index !== undefined;
    const stage = named ? store.stages[index]?.name : parts.stage;
    const asked = { ...parts, ...(stage !== undefined && { stage }) };
    const at = store.stages.findIndex((one) => one.name === stage);
    if (at >= 0) {
      this.tell({ stage, stage_index: at }); // the name and the number follow each other
    }
    if (Object.keys(asked).length) {
      store.shown.ask(asked);
    }
    if (op !== undefined || line !== undefined) {
      store.run(this.pin(op ?? null, line ?? null));
    }
  }

  private async pin(op: number | null, line: number | null): Promise<void> {
    const found = line ?? (op === null ? null : await this.lineOf(op));
    const none = op === null && found === null;
    this.store.pin(none ? null : { lines: found === null ? [] : [found], op, from: 'widget' });
  }

  /** Returns the source line of an op, from the last stage that has the op. */
  private async lineOf(op: number): Promise<number | null> {
    for (const stage of [...this.store.stages].reverse()) {
      const listing = await this.store.listing(stage.text);
      const at = listing?.ops?.indexOf(op) ?? -1;
      if (listing && at >= 0) {
        return listing.lines[at] || null;
      }
    }
    return null;
  }

  /** Reports the values that have changed. */
  private tell(state: Partial<ViewState>): void {
    const changed = Object.entries(state).filter(
      ([name, value]) => this.told[name as keyof ViewState] !== value,
    );
    if (changed.length) {
      Object.assign(this.told, state);
      this.onShown(state);
    }
  }
}

/** Mounts a view without the header and the tabs of the card. */
function mountSingle(element: HTMLElement, key: string, store: Store): { dispose(): void } {
  const spec = [...VIEWS, ...MORE].find((view) => view.key === key);
  const title = spec ? `${spec.title} of ${store.doc.kernel}` : key;
  const root = h('section.bnb-card.bnb-single', { 'aria-label': title, 'data-view': key });
  const notice = h('p.bnb-quiet.bnb-notice', { role: 'status', hidden: true });
  const panel = h('div.bnb-panel');
  root.append(notice, panel);
  let mounted: Mounted | null = null;
  const empty = (): string | null =>
    spec ? spec.empty(store.doc, store) : `This page does not have the view “${key}”.`;
  const open = (): void => {
    const why = empty();
    panel.replaceChildren(why ? h('p.bnb-empty', {}, why) : '');
    mounted = why || !spec ? null : spec.mount(panel, store);
  };
  const stop = store.subscribe((change) => {
    if (change === 'problem' || change === 'document') {
      paintNotice(notice, store);
    }
    if (change === 'document' && (mounted === null) !== (empty() !== null)) {
      mounted?.dispose?.();
      open();
    } else {
      updateViews(root, mounted ? [mounted] : [], change, store);
    }
  });
  const stopDeferred = fetchDeferred(store);
  listenKeys(
    root,
    store,
    () => mounted ?? undefined,
    () => {}, // a view alone has no list of keys
  );
  element.replaceChildren(root);
  try {
    open();
  } catch (error) {
    store.fail(error);
  }
  return {
    dispose() {
      stop();
      stopDeferred();
      mounted?.dispose?.();
      disposeKnobs(store);
      store.dispose();
      root.remove();
    },
  };
}
