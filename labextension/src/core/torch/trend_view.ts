/** The Trend view of a compiled model: what each run of the cell took, the oldest first. */

import { scaleLinear } from 'd3-scale';
import { line, symbolCircle } from 'd3-shape';

import { h, svg } from '../dom';
import { saveButtons } from '../plot/export';
import { EDGE, explore, frame, HEIGHT, mark, WIDTH } from '../plot/frame';
import { digits, size, time, timing } from '../plot/numbers';
import { type Cell, plottedTimes } from '../plot/series';
import { table } from '../plot/table';
import type { TorchRun } from '../schema';
import type { Mounted, ViewSpec } from '../views/spec';

export const trend: ViewSpec = {
  key: 'trend',
  title: 'Trend',
  tooltip: 'The kernels’ times, their number and their bytes, for each run of this cell',
  empty: ({ torch }) =>
    torch?.trend.length ? null : 'Only a cell with %%torchkernels has a trend: each run adds a point.',
  mount: (panel, store) => {
    const paint = (): void => panel.replaceChildren(...parts(store.doc.torch?.trend ?? []));
    paint();
    return { update: (change) => void (change === 'document' && paint()) } satisfies Mounted;
  },
};

const HEAD = ['run', 'change', 'time of the kernels', 'kernels', 'launches', 'unique bytes', 'when'];

function parts(runs: readonly TorchRun[]): HTMLElement[] {
  const status = h('p.bnb-quiet.bnb-description', { 'aria-live': 'polite' });
  const timed = runs.filter((run) => run.time);
  const plot = timed.length > 1 ? timesPlot(runs, (text) => void (status.textContent = text)) : null;
  const rows = runs.map((run, i) => [
    String(i + 1),
    run.change,
    run.time ? timing(run.time) : 'not measured',
    String(run.kernels),
    String(run.launches),
    run.bytes === null ? 'unknown' : size(run.bytes),
    run.when.replace('T', ' ').replace(/\+.*$/, ' UTC'),
  ]);
  const buttons = saveButtons(
    'torchkernels-trend',
    () => plot,
    () => records(runs),
  ).filter((_, i) => plot || i > 0);
  const caption = 'Runs of this cell, those of earlier sessions of this notebook included';
  const below = h(
    'div.bnb-results',
    { tabindex: 0, role: 'region', 'aria-label': 'Runs' },
    table(caption, HEAD, rows),
  );
  return [h('div.bnb-tools', {}, ...buttons), ...(plot ? [h('div', {}, plot), status] : []), below];
}

/** Draws the sum of the kernels' times for each run. */
function timesPlot(runs: readonly TorchRun[], onDescribe: (text: string) => void): SVGSVGElement {
  const known = runs.flatMap((run, i) => (run.time ? [{ run, i, time: run.time }] : []));
  const shown = plottedTimes(known.map(({ i, time: t }) => [String(i + 1), t] as const));
  const most = Math.max(...shown.series.flatMap((s) => [s.median[0] ?? 0, s.high[0] ?? 0]));
  const y = scaleLinear([0, most * 1.08 || 1], [HEIGHT - EDGE.bottom, EDGE.top]);
  const at = (n: number): number => EDGE.left + ((WIDTH - EDGE.left - EDGE.right) * (n + 0.5)) / known.length;
  const plot = frame(
    'Times of the runs',
    { title: 'run', ticks: known.map(({ i }, n) => ({ at: at(n), label: String(i + 1) })) },
    {
      title: `kernels' time (${shown.unit})`,
      ticks: y.ticks(6).map((v) => ({ at: y(v), label: digits(v) })),
    },
  );
  const value = (n: number, column: 'median' | 'low' | 'high'): number => y(shown.series[n][column][0] ?? 0);
  const path = line<number>(at, (n) => value(n, 'median'));
  plot.area.append(svg('path', { class: 'bnb-line bnb-series-0', d: path(known.map((_, n) => n)) }));
  const marks = known.map(({ run, i, time: t }, n) => {
    const [low, high] = [value(n, 'low'), value(n, 'high')];
    plot.area.append(svg('line', { class: 'bnb-plot-whisker', x1: at(n), x2: at(n), y1: low, y2: high }));
    const text = `run ${i + 1}: ${time(t.median)}, ${run.kernels} kernels, ${run.launches} launches`;
    return mark(symbolCircle, at(n), value(n, 'median'), 'bnb-series-0', text);
  });
  plot.area.append(...marks);
  explore([marks], onDescribe);
  return plot.element;
}

function records(runs: readonly TorchRun[]): Cell[][] {
  const head = ['run', 'change', 'ms', 'ms_low', 'ms_high', 'kernels', 'launches', 'bytes', 'when', 'device'];
  const rows = runs.map((run, i): Cell[] => [
    i + 1,
    run.change,
    ...[run.time?.median, run.time?.low, run.time?.high].map((v) => v ?? null),
    run.kernels,
    run.launches,
    run.bytes,
    run.when,
    run.time?.device ?? '',
  ]);
  return [head, ...rows];
}
