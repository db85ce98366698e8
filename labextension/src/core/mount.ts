/**
 * A card in an element: its head, and its views as tabs. The one entry of the core; whoever embeds it gives a Host.
 *
 * The views are mounted when their tab is first opened and live until the card is disposed. Keys without a modifier stay inside the
 * card (in a notebook `b` would insert a cell), but for Escape and Tab, which lead out of it.
 */

import { h } from './dom';
import type { Host } from './host';
import type { Document } from './schema';
import { Store } from './store';
import { tabs } from './tabs';
import { VIEWS } from './views';
import { completed } from './whole';
import type { Mounted, ViewSpec } from './views/spec';

export interface Card {
  update(doc: Document): void;
  /** Other surroundings: the kernel has gone, or has come. */
  connect(host: Host): void;
  dispose(): void;
}

export function mount(element: HTMLElement, doc: Document, host: Host): Card {
  const store = new Store(doc, host);
  const mounted = new Map<string, Mounted>();
  const root = h('section.bnb-card', { 'aria-label': `blocknb: ${doc.kernel}` });
  const head = h('header.bnb-head');
  const shown = viewsOf(store);
  const bar = tabs(
    'Views of the kernel',
    shown.map((view) => ({
      key: view.key,
      title: view.title,
      empty: view.empty(store.doc, store),
      open: (panel) => void mounted.set(view.key, view.mount(panel, store)),
    })),
  );
  const keys = h('dl.bnb-keys', { hidden: true, 'aria-label': 'Keys' });
  root.append(head, bar.element, keys);
  paintHead(head, store);
  if (shown.length) {
    bar.show(firstTab(doc, shown));
  }

  const stop = store.subscribe((change) => {
    if (change !== 'selection') {
      paintHead(head, store);
    }
    for (const view of mounted.values()) {
      view.update(change);
    }
  });
  const rest = completed(store);
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
      rest();
      mounted.forEach((view) => view.dispose?.());
      store.dispose();
      root.remove();
    },
  };
}

/** The views of a document: all for a compiled kernel, those that have something to show for anything else. */
function viewsOf(store: Store): readonly ViewSpec[] {
  const { doc } = store;
  return doc.kind === 'compile' ? VIEWS : VIEWS.filter((view) => view.empty(doc, store) === null);
}

/** The view to begin with: what the document asks for, by the key of a view, of a stage or of a level of code. */
function firstTab(doc: Document, shown: readonly ViewSpec[]): string {
  const asked = doc.show?.[0];
  const stages = doc.views.flatMap((view) => view.stages ?? []);
  if (asked && shown.some((view) => view.key === asked)) {
    return asked;
  }
  return asked && stages.some((stage) => stage.name === asked) ? 'passes' : shown[0].key;
}

const KEYS: readonly [string, string][] = [
  ['← →', 'another tab, when a tab is focused'],
  ['Tab', 'the next control'],
  ['/', 'search in a listing'],
  ['n p', 'the next and the previous difference, in a comparison'],
  ['Escape', 'back to the cell'],
  ['?', 'show and hide this'],
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
const MEANING = {
  live: 'the kernel answers: everything on this card can be changed',
  disconnected: 'the kernel is gone: run the cell again for knobs and new measurements',
  saved: 'no kernel: what was saved can be explored',
} as const;

/** A text in which backquotes mark code; an odd one is left as it is. */
function marked(text: string): (string | Node)[] {
  const parts = text.split('`');
  return parts.length % 2 ? parts.map((part, i) => (i % 2 ? h('code', {}, part) : part)) : [text];
}

const STALE =
  'No cell of this notebook holds the text that this card was made from: its lines are linked again when the cell is run.';

function paintHead(head: HTMLElement, store: Store): void {
  const { doc, host } = store;
  const state = h(
    'span.bnb-state',
    { 'data-state': host.state, title: MEANING[host.state] },
    STATES[host.state],
  );
  const targets = h('span.bnb-targets', { role: 'group', 'aria-label': 'Target' });
  doc.views.forEach((view, i) => {
    const choose = h(
      'button.bnb-target',
      { type: 'button', 'aria-pressed': String(i === store.view), title: view.place },
      view.label,
    );
    choose.addEventListener('click', () => store.look(i));
    targets.append(choose);
  });
  const facts = h('dl.bnb-facts');
  for (const [label, text] of doc.facts) {
    facts.append(h('dt', {}, label), h('dd', {}, ...marked(text)));
  }
  const stale =
    host.cell === 'changed' ? h('span.bnb-stale', { title: STALE }, '△ the cell has changed since') : null;
  const title = h('div.bnb-title', {}, h('strong', {}, doc.kernel), targets, stale, state);
  title.append(h('span.bnb-hint', {}, 'press ? for keys'));
  head.replaceChildren(title, facts);
}
