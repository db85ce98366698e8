/**
 * What the machine code needs: registers, shared memory, spills, stack and occupancy, one column a target, with what limits the
 * occupancy and what would change it. A CPU has none of these, and its column says so.
 */

import { h } from '../dom';
import type { Document, View } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

const CPU =
  'A CPU runs programs one after another on its threads: registers, shared memory and occupancy are figures of a GPU.';

export const resources: ViewSpec = {
  key: 'resources',
  title: 'Resources',
  empty: (doc) => why(doc),
  mount: (panel, store) => new ResourcesView(panel, store),
};

function why(doc: Document): string | null {
  const gpus = doc.views.filter(isGpu);
  if (gpus.some((view) => view.resources)) {
    return null;
  }
  const failed = doc.views.find((view) => view.error);
  return failed ? `There is no GPU code to report on: ${failed.error}` : CPU;
}

const isGpu = (view: View): boolean => view.target?.startsWith('sm_') ?? false;

class ResourcesView implements Mounted {
  constructor(
    private readonly panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.paint();
  }

  update(change: string): void {
    if (change === 'document' || change === 'view') {
      this.paint();
    }
  }

  private paint(): void {
    const { views } = this.store.doc;
    const table = h('table.bnb-table', {}, h('caption', {}, 'as the assembler reported it'));
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
    this.panel.replaceChildren(...parts);
  }
}

const number = (value: number | null | undefined, unit = ''): string =>
  value === null || value === undefined ? 'not reported' : `${value}${unit}`;

const ROWS: [string, (view: View) => string][] = [
  ['registers a thread', (view) => number(view.resources?.registers)],
  ['shared memory a program', (view) => number(view.resources?.shared_bytes, ' B')],
  ['spills a thread', (view) => number(view.resources?.spill_bytes, ' B')],
  ['stack a thread', (view) => number(view.resources?.stack_bytes, ' B')],
  ['threads a program', (view) => number(view.resources?.threads)],
  ['programs an SM', (view) => number(view.resources?.occupancy?.blocks_per_sm)],
  [
    'occupancy',
    (view) => {
      const held = view.resources?.occupancy;
      return held ? `${held.percent} % (${held.warps_per_sm} of ${held.max_warps} warps)` : 'not known';
    },
  ],
];

const LIMITS: Readonly<Record<string, string>> = {
  registers: 'the registers of the SM',
  'shared memory': 'the shared memory of the SM',
  threads: 'the number of threads that an SM holds',
  blocks: 'the number of programs that an SM holds',
};

/** What limits a target's occupancy, a bar with the numbers, and what would change it. */
function about(view: View): HTMLElement[] {
  if (view.error) {
    return [h('p.bnb-empty', {}, view.error)];
  }
  if (!isGpu(view)) {
    return [h('p.bnb-quiet', {}, CPU)];
  }
  const held = view.resources?.occupancy;
  if (!held) {
    return [
      h(
        'p.bnb-quiet',
        {},
        'Without the assembler’s report (ptxas is not installed) there is no occupancy to compute.',
      ),
    ];
  }
  const bar = h('meter.bnb-meter', {
    min: 0,
    max: held.max_warps,
    value: held.warps_per_sm,
    'aria-label': `${held.warps_per_sm} of ${held.max_warps} warps`,
  });
  const full = held.warps_per_sm >= held.max_warps;
  const limit = full
    ? 'The SM is full: more occupancy cannot be had.'
    : `Limited by ${LIMITS[held.limiter] ?? held.limiter}: one more program would not fit.`;
  const parts: HTMLElement[] = [h('p', {}, bar, ` ${held.percent} % of ${held.max_warps} warps. ${limit}`)];
  const advice = [...held.advice];
  if (view.resources?.spill_bytes) {
    advice.push(
      'it spills registers to memory: smaller tiles or more warps a program need fewer registers a thread',
    );
  }
  if (advice.length) {
    parts.push(h('ul.bnb-notes', {}, ...advice.map((text) => h('li', {}, text))));
  }
  return parts;
}
