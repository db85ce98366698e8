/**
 * The entry point of the core: it mounts a card, which is a header and a tab for each view. The embedding application passes a Host.
 *
 * A view is mounted when the user first opens its tab, and lives until the card is disposed. The card keeps keys without a modifier,
 * because in a notebook `b` would insert a cell. Escape and Tab leave the card.
 */

import { button, h, renderBackquotes } from './dom';
import type { Host } from './host';
import type { Document } from './schema';
import { Store } from './store';
import { tabs } from './tabs';
import { VIEWS } from './views';
import { fetchDeferred } from './deferred';
import { outsideThePage, whenNear } from './near';
import type { Mounted, ViewSpec } from './views/spec';

/** A mounted card. */
export interface Card {
  /** Shows another document. */
  update(doc: Document): void;
  /** Changes the host, for example when the kernel stops or starts. */
  connect(host: Host): void;
  dispose(): void;
}

/** Mounts a card in an element. */
export function mount(element: HTMLElement, doc: Document, host: Host): Card {
  const store = new Store(doc, host);
  const mounted = new Map<string, Mounted>();
  const root = h('section.bnb-card', { 'aria-label': `blocknb: ${doc.kernel}` });
  const head = h('header.bnb-head');
  const shown = availableViews(store);
  const open = (view: ViewSpec, panel: HTMLElement): void => {
    try {
      mounted.set(view.key, view.mount(panel, store));
    } catch (error) {
      panel.replaceChildren(h('p.bnb-empty', {}, 'This view cannot show the document.'));
      store.fail(error);
    }
  };
  const bar = tabs(
    'Views of the kernel',
    shown.map((view) => ({
      key: view.key,
      title: view.title,
      empty: view.empty(store.doc, store),
      open: (panel) => outsideThePage(panel, () => open(view, panel)),
    })),
  );
  const notice = h('p.bnb-quiet.bnb-notice', { role: 'status', hidden: true });
  const keys = h('dl.bnb-keys', { hidden: true, 'aria-label': 'Keys' });
  root.append(head, notice, bar.element, keys);
  paintHead(head, store);
  const stop = store.subscribe((change) => {
    if (change === 'problem') {
      paintNotice(notice, store);
      return;
    }
    if (change !== 'selection') {
      paintHead(head, store);
      paintNotice(notice, store);
    }
    for (const view of mounted.values()) {
      try {
        view.update(change);
      } catch (error) {
        store.fail(error);
      }
    }
  });
  const stopWaiting = whenNear(root, () => shown.length && bar.active === '' && bar.show(firstTab(doc, shown)));
  const stopDeferred = fetchDeferred(store);
  root.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const field = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (!field && !event.defaultPrevented) {
      const view = mounted.get(bar.active);
      if (event.key === '?') {
        paintKeys(keys, view);
        event.preventDefault();
      } else if (view?.key?.(event)) {
        event.preventDefault();
      }
    }
    if (event.key !== 'Escape' && event.key !== 'Tab') {
      event.stopPropagation();
    }
  });
  element.replaceChildren(root);
  return {
    update: (next) => store.update(next),
    connect: (next) => store.connect(next),
    dispose() {
      stop();
      stopWaiting();
      stopDeferred();
      mounted.forEach((view) => view.dispose?.());
      store.dispose();
      root.remove();
    },
  };
}

/** Says which part of the document is not shown. A click shows a part that is only large. */
function paintNotice(notice: HTMLElement, store: Store): void {
  const { problem } = store;
  notice.hidden = problem === null;
  notice.replaceChildren(problem?.text ?? '');
  if (problem?.asks) {
    notice.append(
      ' ',
      button('Show it', () => store.showLarge()),
    );
  }
}

/** Returns the views of a document: all views for a compiled kernel, and the nonempty ones for any other document. */
function availableViews(store: Store): readonly ViewSpec[] {
  const { doc } = store;
  return doc.kind === 'compile' ? VIEWS : VIEWS.filter((view) => view.empty(doc, store) === null);
}

/** Returns the view to open first. The document can name it by the key of a view, of a stage or of a level of code. */
function firstTab(doc: Document, shown: readonly ViewSpec[]): string {
  const requested = doc.show?.[0];
  const stages = doc.views.flatMap((view) => view.stages ?? []);
  if (requested && shown.some((view) => view.key === requested)) {
    return requested;
  }
  return requested && stages.some((stage) => stage.name === requested) ? 'passes' : shown[0].key;
}

const KEYS: readonly [string, string][] = [
  ['← →', 'next or previous tab (when a tab has the focus)'],
  ['Tab', 'next control'],
  ['/', 'search in a listing'],
  ['n p', 'next or previous difference (in a comparison)'],
  ['Escape', 'back to the cell'],
  ['?', 'show or hide this list'],
];

function paintKeys(list: HTMLElement, view: Mounted | undefined): void {
  list.hidden = !list.hidden;
  list.replaceChildren(
    ...[...(view?.keys ?? []), ...KEYS].flatMap(([key, what]) => [
      h('dt', {}, h('kbd', {}, key)),
      h('dd', {}, what),
    ]),
  );
}

const STATES = { live: 'live', disconnected: 'disconnected', saved: 'saved' } as const;
const STATE_TOOLTIPS = {
  live: 'Connected to a kernel. Knobs and new measurements are available.',
  disconnected: 'The kernel has stopped. Run the cell again to use knobs and to measure.',
  saved: 'Saved output, without a kernel.',
} as const;

const STALE_TOOLTIP =
  'No cell of this notebook contains the source of this card, so its lines are not linked. Run the cell again.';

function paintHead(head: HTMLElement, store: Store): void {
  const { doc, host } = store;
  const state = h(
    'span.bnb-state',
    { 'data-state': host.state, title: STATE_TOOLTIPS[host.state] },
    STATES[host.state],
  );
  const targets = h('span.bnb-targets', { role: 'group', 'aria-label': 'Target' });
  doc.views.forEach((view, i) => {
    const choose = h(
      'button.bnb-target',
      { type: 'button', 'aria-pressed': String(i === store.view), title: view.place },
      view.label,
    );
    choose.addEventListener('click', () => store.selectView(i));
    targets.append(choose);
  });
  const facts = h('dl.bnb-facts');
  for (const [label, text] of doc.facts) {
    const wrong = text.includes('✗') ? '.bnb-wrong' : '';
    facts.append(h('dt', {}, label), h(`dd${wrong}`, {}, ...renderBackquotes(text)));
  }
  const stale =
    host.cell === 'changed' ? h('span.bnb-stale', { title: STALE_TOOLTIP }, '△ the cell has changed') : null;
  // A benchmark of expressions has no kernel that could answer for it.
  const states = doc.kind === 'compile' ? [stale, state] : [stale];
  const title = h('div.bnb-title', {}, h('strong', {}, doc.kernel), targets, ...states);
  title.append(h('span.bnb-hint', {}, 'press ? for keys'));
  head.replaceChildren(title, facts);
}
