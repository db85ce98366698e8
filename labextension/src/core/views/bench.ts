/** The Bench view: interleaved timings of the kernel, of variants without a pass, and of baselines, as a table with bars. */

import { h, svg } from '../dom';
import { time } from '../plot/numbers';
import type { BenchRow } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

export const bench: ViewSpec = {
  key: 'bench',
  title: 'Bench',
  empty: (doc) =>
    doc.bench
      ? null
      : 'There are no measurements to compare. Run the cell with --baseline EXPR or --without PASS.',
  mount: (panel, store) => new BenchView(panel, store),
};

const KINDS = { kernel: 'kernel', without: 'without a pass', baseline: 'baseline' } as const;

class BenchView implements Mounted {
  constructor(
    private readonly panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.paint();
  }

  update(change: string): void {
    if (change === 'document') {
      this.paint();
    }
  }

  private paint(): void {
    const found = this.store.doc.bench;
    if (!found) {
      return;
    }
    const most = Math.max(...found.rows.map((row) => row.high ?? 0));
    const fastest = Math.min(...found.rows.map((row) => row.median ?? Infinity));
    const caption = `Interleaved timing, ${found.rounds} rounds on copies of the arrays: median and interquartile range`;
    const titles = ['', 'kind', 'median', 'interquartile range', 'ratio', ''];
    const head = h('tr', {}, ...titles.map((text) => h('th', { scope: 'col' }, text)));
    const body = h('tbody', {}, ...found.rows.map((row) => line(row, most, fastest)));
    this.panel.replaceChildren(
      h('table.bnb-table', {}, h('caption', {}, caption), h('thead', {}, head), body),
    );
  }
}

function line(row: BenchRow, most: number, fastest: number): HTMLElement {
  const tr = h('tr', {}, h('th', { scope: 'row' }, h('code', {}, row.label)), h('td', {}, KINDS[row.kind]));
  const { median, low, high } = row;
  if (median === undefined || low === undefined || high === undefined) {
    tr.append(h('td', { colspan: 4 }, row.error ?? 'not measured'));
    return tr;
  }
  tr.append(
    h('td', {}, time(median)),
    h('td', {}, `${time(low)} – ${time(high)}`),
    h('td', {}, `${(median / fastest).toPrecision(3)}×`),
    h('td', {}, bar(median / most, low / most, high / most)),
  );
  return tr;
}

const WIDTH = 160;

/** Draws a bar to the median, with a whisker over the interquartile range. */
function bar(median: number, low: number, high: number): SVGElement {
  return svg(
    'svg',
    { width: WIDTH, height: 14, 'aria-hidden': 'true', class: 'bnb-bar' },
    svg('rect', { x: 0, y: 3, width: median * WIDTH, height: 8 }),
    svg('line', { x1: low * WIDTH, x2: high * WIDTH, y1: 7, y2: 7 }),
  );
}
