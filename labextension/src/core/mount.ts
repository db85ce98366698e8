/**
 * The entry point of the core: it mounts a card, which is a header and a tab for each view. The embedding application passes a Host.
 *
 * A view is mounted when the user first opens its tab, and lives until the card is disposed. A second instance of a view can live in
 * another element, such as a panel of JupyterLab: both read the same store, so a selection in one shows in the other.
 */

import { CardLink } from './card_link';
import { button, h } from './dom';
import { fetchDeferred } from './deferred';
import { header } from './header';
import type { Host } from './host';
import { CARD_KEYS, keyHelp, listenKeys } from './keys';
import type { LinkTarget } from './link_target';
import { paintSwitches } from './pane_switches';
import { Projector } from './projector';
import type { Document } from './schema';
import { type Change, Store } from './store';
import { shareFoot } from './share';
import { outsideThePage, whenNear } from './viewport';
import { orderedViews, strip, type Strip } from './strip';
import { tabs } from './tabs';
import { veiled, whyEmpty } from './verdict';
import { TORCH_VIEWS } from './torch';
import { VIEWS } from './views';
import type { Mounted, ViewSpec } from './views/spec';

/** A view in an element outside of the card. `view` keeps the choices of the user for the next instance. */
export interface Docked {
  readonly view: Mounted | null;
  dispose(): void;
}

/** A mounted card. */
export interface Card {
  /** Shows another document. */
  update(doc: Document): void;
  /** Changes the host, for example when the kernel stops or starts. */
  connect(host: Host): void;
  /** Mounts a second instance of a view in an element, with the choices of `from` (by default: of the view in the card). */
  dock(key: string, element: HTMLElement, from?: Mounted | null): Docked;
  /** Shows what a link says. null: its text is none. */
  open(target: LinkTarget | null): void;
  /** Returns what a link to the present state says. */
  now(): LinkTarget;
  dispose(): void;
}

/** Mounts a card in an element. A widget passes the store, to which it connects its traits. */
export function mount(element: HTMLElement, doc: Document, host: Host, store = new Store(doc, host)): Card {
  const mounted = new Map<string, Mounted>();
  const root = h('section.bnb-card', { 'aria-label': `blocknb: ${doc.kernel}` });
  const shown = orderedViews(doc, availableViews(store));
  const active = (): Mounted | undefined => mounted.get(bar.active);
  const help = keyHelp(active, CARD_KEYS);
  const bar = tabs(
    'Views of the kernel',
    shown.map((view) => ({
      key: view.key,
      title: view.title,
      tooltip: view.tooltip,
      empty: whyEmpty(view, store),
      measure: () => (veiled(store) ? null : (view.measure?.(store) ?? null)),
      open: (panel) =>
        outsideThePage(panel, () => {
          const made = mountView(view, panel, store);
          if (made) {
            mounted.set(view.key, made);
          }
        }),
    })),
    (key) => {
      below?.reveal(key);
      projector?.paintHints();
    },
  );
  const projector: Projector | undefined = new Projector({
    root,
    store,
    active,
    stepTab: (by) => bar.step(by),
  });
  const link = new CardLink({
    store,
    bar,
    view: (key) => mounted.get(key),
    projected: () => projector.on,
    project: () => projector.set(true, false),
  });
  const dock = button('Dock', () => dockActive(), { title: 'Show this view in a panel beside the notebook' });
  const dockActive = (): void => {
    const view = shown.find(({ key }) => key === bar.active);
    if (view) {
      store.host.dock?.(view.key, `${store.doc.kernel}: ${view.title}`);
    }
  };
  bar.tools.append(projector.button, dock);
  const head = header(store, help.toggle);
  const below: Strip | undefined = strip(store, bar);
  const notice = h('p.bnb-quiet.bnb-notice', { role: 'status', hidden: true });
  root.append(head.element, notice, link.notice, bar.element, help.list, projector.hints);
  const stop = store.subscribe((change) => {
    if (change !== 'selection' && change !== 'problem' && change !== 'display') {
      head.paint();
      bar.refresh(shown.map((view) => whyEmpty(view, store)));
      dock.hidden = !store.host.dock;
    }
    if (change !== 'selection' && change !== 'display') {
      below.update();
      paintNotice(notice, store);
    }
    updateViews(root, [...mounted.values()], change, store);
  });
  dock.hidden = !store.host.dock;
  const stopWaiting = whenNear(
    root,
    () => shown.length && bar.active === '' && bar.show(firstTab(doc, shown)),
  );
  store.mountCard = (where, inner, its) => mount(where, inner, its);
  store.open = (view, level) => {
    store.requestedLevel = level ?? null;
    bar.show(view);
    mounted.get(view)?.update('view');
  };
  const stopDeferred = fetchDeferred(store);
  listenKeys(root, store, active, help.flip, (event) => projector.key(event));
  shareFoot(root, store, () => link.now());
  element.replaceChildren(root);
  return {
    update: (next) => store.update(next),
    connect: (next) => store.connect(next),
    dock: (key, where, from) => dockView(key, where, store, from ?? mounted.get(key)),
    open: (target) => link.open(target),
    now: () => link.now(),
    dispose() {
      projector.dispose();
      stop();
      stopWaiting();
      stopDeferred();
      below.dispose();
      mounted.forEach((view) => view.dispose?.());
      store.dispose();
      root.remove();
    },
  };
}

/** Mounts a view in a panel. Returns null, with a text in the panel, if the view fails. */
function mountView(view: ViewSpec, panel: HTMLElement, store: Store, from?: Mounted): Mounted | null {
  try {
    return view.mount(panel, store, from);
  } catch (error) {
    panel.replaceChildren(h('p.bnb-empty', {}, 'This view cannot show the document.'));
    store.fail(error);
    return null;
  }
}

/** Reports a change of the store to views. Settings of the listings reach the editors directly. */
export function updateViews(
  root: HTMLElement,
  views: readonly Mounted[],
  change: Change,
  store: Store,
): void {
  if (change === 'display') {
    paintSwitches(root, store.display);
  }
  if (change === 'display' || change === 'problem') {
    return;
  }
  for (const view of views) {
    try {
      view.update(change);
    } catch (error) {
      store.fail(error);
    }
  }
}

/** Mounts a view in an element outside of the card, with the look and the keys of the card. */
function dockView(key: string, element: HTMLElement, store: Store, from?: Mounted): Docked {
  const spec = VIEWS.find((view) => view.key === key);
  const panel = h('div.bnb-panel', { tabindex: 0, role: 'region', 'aria-label': spec?.title ?? key });
  const root = h('section.bnb-card.bnb-docked', { 'aria-label': `blocknb: ${store.doc.kernel}` });
  let view: Mounted | null = null;
  const help = keyHelp(() => view ?? undefined);
  root.append(panel, help.list);
  const paint = (): void => {
    const empty = spec ? whyEmpty(spec, store) : 'This version has no such view.';
    if (empty === null && spec && !view) {
      panel.replaceChildren();
      view = mountView(spec, panel, store, from);
    } else if (empty !== null && !view) {
      panel.replaceChildren(h('p.bnb-empty', {}, empty));
    }
  };
  element.replaceChildren(root);
  paint();
  const stop = store.subscribe((change) => {
    if (change === 'document') {
      paint();
    }
    updateViews(root, view ? [view] : [], change, store);
  });
  listenKeys(root, store, () => view ?? undefined, help.flip);
  return {
    get view() {
      return view;
    },
    dispose() {
      stop();
      view?.dispose?.();
    },
  };
}

/** Says which part of the document is not shown. A click shows a part that is only large. */
export function paintNotice(notice: HTMLElement, store: Store): void {
  const { problem } = store;
  notice.hidden = problem === null;
  notice.replaceChildren(problem?.text ?? '');
  if (problem?.asks) {
    notice.append(
      ' ',
      button('Show it', () => store.showLarge(), { title: 'Unpack this part, which may take a while' }),
    );
  }
}

/** Returns the views of a document: all views of one kernel for a compiled kernel, and the nonempty ones for any other document. */
function availableViews(store: Store): readonly ViewSpec[] {
  const { doc } = store;
  return doc.kind === 'compile'
    ? VIEWS.filter(
        (view) =>
          view.key !== 'compare' && !TORCH_VIEWS.includes(view) && (view.key !== 'workers' || doc.workers),
      )
    : VIEWS.filter((view) => view.empty(doc, store) === null && !OF_A_LAUNCH.includes(view.key));
}

/** Views that a live kernel fills for one launch, which a comparison or a benchmark does not have. */
const OF_A_LAUNCH: readonly string[] = ['launch', 'step', 'footprint'];

/** The views that answer an option of the cell, such as `--sweep`. The document has their part only if the cell asked for it. */
const ANSWERS = ['sweep', 'bench', 'roofline'] as const;

/**
 * Returns the view to open first. The document can name it by the key of a view, of a stage or of a level of code. Otherwise it is the
 * view that answers the option of the cell.
 */
export function firstTab(doc: Document, shown: readonly Pick<ViewSpec, 'key'>[]): string {
  const requested = doc.show?.[0];
  const stages = doc.views.flatMap((view) => view.stages ?? []);
  if (requested && shown.some((view) => view.key === requested)) {
    return requested;
  }
  if (requested && stages.some((stage) => stage.name === requested)) {
    return 'passes';
  }
  const answer = requested ? undefined : ANSWERS.find((key) => doc[key]);
  return answer && shown.some((view) => view.key === answer) ? answer : shown[0].key;
}
