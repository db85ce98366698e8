/**
 * The Resources view: registers, shared memory, spills, stack and occupancy of each target. It names the limit of the occupancy and
 * changes that would raise it. A CPU target has none of these figures.
 */

import { h } from '../dom';
import type { Document, View } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from './spec';
import { TargetColumns } from './target_columns';

const CPU =
  'These figures exist for GPU targets only. A CPU runs the programs one after another on its threads.';

export const resources: ViewSpec = {
  key: 'resources',
  title: 'Resources',
  tooltip: 'Registers, shared memory, spills and occupancy',
  empty: (doc) => emptyReason(doc),
  mount: (panel, store) => new ResourcesView(panel, store),
};

function emptyReason(doc: Document): string | null {
  const gpus = doc.views.filter(isGpu);
  if (gpus.some((view) => view.resources)) {
    return null;
  }
  const failed = doc.views.find((view) => view.error);
  return failed ? `There is no GPU code: ${failed.error}` : CPU;
}

const isGpu = (view: View): boolean => view.target?.startsWith('sm_') ?? false;

class ResourcesView implements Mounted {
  private readonly columns: TargetColumns;

  constructor(
    private readonly panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.columns = new TargetColumns(store);
    this.paint();
  }

  update(change: string): void {
    if (change === 'document' || change === 'view') {
      this.paint();
    }
    if (change === 'document') {
      this.columns.paint();
    } else if (change === 'selection') {
      this.columns.highlight();
    }
  }

  dispose(): void {
    this.columns.dispose();
  }

  private paint(): void {
    const { views } = this.store.doc;
    const table = h('table.bnb-table', {}, h('caption', {}, 'Reported by ptxas'));
    const head = h('tr', {}, h('td'));
    head.append(...views.map((view) => h('th', { scope: 'col' }, view.label)));
    const body = h('tbody');
    for (const [label, cell] of ROWS) {
      const row = h('tr', {}, h('th', { scope: 'row' }, label));
      row.append(...views.map((view) => h('td', {}, view.resources && isGpu(view) ? cell(view) : '–')));
      body.append(row);
    }
    table.append(h('thead', {}, head), body);
    const parts: HTMLElement[] = [table];
    for (const view of views) {
      parts.push(h('h4.bnb-heading', {}, view.label), ...about(view));
    }
    this.panel.replaceChildren(...parts, this.columns.element);
  }
}

const number = (value: number | null | undefined, unit = ''): string =>
  value === null || value === undefined ? 'not reported' : `${value}${unit}`;

const ROWS: [string, (view: View) => string][] = [
  ['registers per thread', (view) => number(view.resources?.registers)],
  ['shared memory per CTA', (view) => number(view.resources?.shared_bytes, ' B')],
  ['spills per thread', (view) => number(view.resources?.spill_bytes, ' B')],
  ['stack per thread', (view) => number(view.resources?.stack_bytes, ' B')],
  ['threads per CTA', (view) => number(view.resources?.threads)],
  ['programs per SM', (view) => number(view.resources?.occupancy?.blocks_per_sm)],
  [
    'occupancy',
    (view) => {
      const held = view.resources?.occupancy;
      return held ? `${held.percent} % (${held.warps_per_sm} of ${held.max_warps} warps)` : 'unknown';
    },
  ],
];

const LIMITS: Readonly<Record<string, string>> = {
  registers: 'the registers of the SM',
  'shared memory': 'the shared memory of the SM',
  threads: 'the maximum number of threads per SM',
  blocks: 'the maximum number of CTAs per SM',
};

/** Describes the occupancy of a target: a bar, the limit, and advice. */
function about(view: View): HTMLElement[] {
  if (view.error) {
    return [h('p.bnb-empty', {}, view.error)];
  }
  if (!isGpu(view)) {
    return [h('p.bnb-quiet', {}, CPU)];
  }
  const held = view.resources?.occupancy;
  if (!held) {
    return [h('p.bnb-quiet', {}, 'The occupancy is unknown, because ptxas is not installed.')];
  }
  const bar = h('meter.bnb-meter', {
    min: 0,
    max: held.max_warps,
    value: held.warps_per_sm,
    'aria-label': `${held.warps_per_sm} of ${held.max_warps} warps`,
  });
  const full = held.warps_per_sm >= held.max_warps;
  const limit = full ? 'This is the maximum.' : `Limited by ${LIMITS[held.limiter] ?? held.limiter}.`;
  const parts: HTMLElement[] = [h('p', {}, bar, ` ${held.percent} % of ${held.max_warps} warps. ${limit}`)];
  const advice = [...held.advice];
  if (view.resources?.spill_bytes) {
    advice.push(
      'The kernel spills registers. Smaller tiles or more warps reduce the number of registers per thread.',
    );
  }
  if (advice.length) {
    parts.push(h('ul.bnb-notes', {}, ...advice.map((text) => h('li', {}, text))));
  }
  return parts;
}
