/** The Bench view: interleaved timings of the kernel, of variants without a pass, and of baselines, as a table with bars. */

import { h, svg } from '../dom';
import { benchPlot } from '../plot/bars';
import { saveButtons } from '../plot/export';
import { measureControls, textField } from '../measure';
import { ratio, time, timing } from '../plot/numbers';
import type { Cell } from '../plot/series';
import { table, tableRow } from '../plot/table';
import type { Bench, BenchRow } from '../schema';
import type { Store } from '../store';
import { paintedView } from '../painted_view';
import type { ViewSpec } from './spec';

export const bench: ViewSpec = {
  key: 'bench',
  title: 'Bench',
  tooltip: 'Times of the kernel, of variants without a pass, and of baselines, measured in turns',
  empty: (doc, store) =>
    doc.bench
      ? null
      : store.host.request
        ? 'Nothing was compared yet. Compare the kernel with an expression, or with itself without each pass.'
        : 'There are no measurements to compare. Run the cell with --baseline EXPR or --without PASS.',
  mount: (panel, store) =>
    paintedView(bench, panel, store, (doc) => (doc.bench ? content(doc.bench, doc.kernel) : null)),
  measure: controls,
};

function controls(store: Store): HTMLElement {
  const tooltip =
    'An expression that does the same work. Without one, the kernel is compared with itself without each pass.';
  const [label, baseline] = textField('baseline', '', tooltip, 'np.exp(x)');
  return measureControls(store, 'bench', 'Measure the kernel and the others in turns', {
    elements: [label],
    content: () => ({ baseline: baseline.value }),
  });
}

const KINDS = { kernel: 'kernel', without: 'without a pass', baseline: 'baseline' } as const;

function content(found: Bench, kernel: string): (Node | string)[] {
  const plot = benchPlot(found);
  const most = Math.max(...found.rows.map((row) => row.time?.high ?? 0));
  const caption = `Measured in turns, ${found.rounds} rounds with cold caches on copies of the arrays: median and interquartile range`;
  const heads = ['', 'kind', 'median', 'interquartile range', 'ratio', ''];
  const buttons = saveButtons(
    `${kernel}-bench`,
    () => plot,
    () => benchRecords(found),
  );
  return [
    h('div.bnb-tools', {}, ...buttons),
    table(
      caption,
      heads,
      found.rows.map((row) => line(row, most)),
    ),
    found.busy ? h('p.bnb-warning', {}, `▲ ${found.busy}`) : '',
    ...found.rows
      .filter((row) => row.note)
      .map((row) => h('p.bnb-quiet', {}, h('code', {}, row.label), `: ${row.note}`)),
    h('div.bnb-file-plot', { 'aria-hidden': 'true' }, plot),
  ];
}

function line(row: BenchRow, most: number): HTMLElement {
  const tr = tableRow(h('code', {}, row.label), KINDS[row.kind]);
  if (!row.time) {
    const wrong = row.error?.startsWith('✗') ? '.bnb-wrong' : '';
    tr.append(h(`td${wrong}`, { colspan: 4 }, row.error ?? 'not measured'));
    return tr;
  }
  const { median, low, high } = row.time;
  tr.append(
    h('td', { title: timing(row.time) }, time(median)),
    h('td', {}, `${time(low)} – ${time(high)}`),
    h('td', { title: row.text ?? '' }, row.ratio ? ratio(row.ratio) : '1.00×'),
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

/** Returns the rows of a benchmark with their head, as `to_csv` in Python writes them. */
export function benchRecords(part: Bench): Cell[][] {
  const head = [
    'label',
    'kind',
    'error',
    'ms',
    'ms_low',
    'ms_high',
    'ratio',
    'ratio_low',
    'ratio_high',
    'n',
    'device',
  ];
  const rows = part.rows.map(({ label, kind, error, time: t, ratio: r }): Cell[] => [
    label,
    kind,
    error ?? '',
    ...[t?.median, t?.low, t?.high, r?.value, r?.low, r?.high, t?.n].map((v) => v ?? null),
    t?.device ?? '',
  ]);
  return [head, ...rows];
}
