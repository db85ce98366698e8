/**
 * The header of a card: its name, its targets and its state, three facts at a glance, and the other facts folded below them.
 *
 * The elements are `div` and `span`: JupyterLab has its own rules for `dl`, `dt` and `dd` in outputs, which float the terms.
 */

import { h, renderBackquotes } from './dom';
import type { Document, HeadlineEntry } from './schema';
import type { Store } from './store';
import { veiled, verdictHead } from './verdict';

/** A mounted header. The fold stays as the user left it when the document changes. */
export interface Header {
  element: HTMLElement;
  paint(): void;
}

/** Creates the header. `help` is the button for the list of keys. */
export function header(store: Store, help: HTMLElement): Header {
  const element = h('header.bnb-head');
  const title = h('div.bnb-title');
  const glance = h('div.bnb-glance', { role: 'list', 'aria-label': 'Time, check and device' });
  const all = h('div.bnb-facts', { role: 'list', 'aria-label': 'All facts' });
  const summary = h('summary', { title: 'Show or hide all facts on this launch' });
  const fold = h('details.bnb-fold', {}, summary, all);
  const course = verdictHead(store);
  element.append(title, course.element, glance, fold);
  const paint = (): void => {
    const { doc } = store;
    title.replaceChildren(...titleParts(store), help);
    course.paint();
    const entries = headline(doc);
    glance.replaceChildren(...entries.map(glanced));
    glance.hidden = !entries.length;
    all.replaceChildren(...doc.facts.map(([label, text]) => fact(label, text)));
    fold.hidden = !doc.facts.length || veiled(store);
    const warnings = doc.facts.filter(([label]) => label === 'warning').length;
    const warned = warnings ? `, ${warnings} warning${warnings > 1 ? 's' : ''}` : '';
    summary.textContent = `All facts (${doc.facts.length}${warned})`;
  };
  paint();
  return { element, paint };
}

/** Returns what the header shows unfolded. An old document has no headline: its facts say the same. */
export function headline(doc: Document): HeadlineEntry[] {
  return (
    doc.headline ??
    ['time', 'check'].flatMap((label): HeadlineEntry[] =>
      doc.facts.filter(([name]) => name === label).map(([, text]) => [label, text, []]),
    )
  );
}

function isWrong(text: string): boolean {
  return text.includes('✗');
}

function glanced([label, value, details]: HeadlineEntry): HTMLElement {
  const wrong = isWrong(value) ? '.bnb-wrong' : '';
  return h(
    'div.bnb-glanced',
    { role: 'listitem', 'data-fact': label },
    h('span.bnb-fact-label', {}, label),
    h(`span.bnb-glanced-value${wrong}`, {}, ...renderBackquotes(value)),
    ...details.filter(Boolean).map((text) => h('span.bnb-glanced-detail', {}, ...renderBackquotes(text))),
  );
}

function fact(label: string, text: string): HTMLElement {
  const wrong = isWrong(text) ? '.bnb-wrong' : '';
  return h(
    'div.bnb-fact',
    { role: 'listitem' },
    h('span.bnb-fact-label', {}, label),
    h(`span.bnb-fact-text${wrong}`, {}, ...renderBackquotes(text)),
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

function titleParts(store: Store): HTMLElement[] {
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
      { type: 'button', 'aria-pressed': String(i === store.view), title: `Show the code for ${view.place}` },
      view.label,
    );
    choose.addEventListener('click', () => store.selectView(i));
    targets.append(choose);
  });
  // The page of `%blockdiff` can show an earlier version, which no cell contains.
  const stale =
    host.cell === 'changed' && doc.kind !== 'compare' && !doc.diff
      ? [h('span.bnb-stale', { title: STALE_TOOLTIP }, '△ the cell has changed')]
      : [];
  // A benchmark of expressions has no kernel that could answer for it.
  const states = doc.kind === 'compile' || doc.torch ? [...stale, state] : stale;
  return [h('strong', {}, doc.kernel), targets, ...states];
}
