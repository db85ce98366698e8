/** The plot of a benchmark for a file: a bar to each median, with a whisker over the interquartile range. The page has a table with bars. */

import { scaleLinear } from 'd3-scale';

import { svg } from '../dom';
import type { Bench } from '../schema';
import { digits } from './numbers';
import { plottedTimes } from './series';

const WIDTH = 720;
const LEFT = 220;
const ROW = 34;
const KINDS = ['kernel', 'without', 'baseline'];

/** Draws the rows that were timed. */
export function benchPlot(part: Bench): SVGSVGElement {
  const shown = plottedTimes(part.rows.map((row) => [row.label, row.time] as const));
  const kinds = new Map(part.rows.map((row) => [row.label, row.kind]));
  const most = Math.max(...shown.series.flatMap((s) => [s.median[0] ?? 0, s.high[0] ?? 0]), 0) || 1;
  const x = scaleLinear([0, most * 1.05], [LEFT, WIDTH - 24]);
  const bottom = 12 + ROW * shown.series.length;
  const plot = svg('svg', { class: 'bnb-plot', viewBox: `0 0 ${WIDTH} ${bottom + 44}` }) as SVGSVGElement;
  for (const value of x.ticks(6)) {
    plot.append(
      svg('line', { class: 'bnb-plot-grid', x1: x(value), x2: x(value), y1: 8, y2: bottom }),
      svg(
        'text',
        { class: 'bnb-plot-label', x: x(value), y: bottom + 16, 'text-anchor': 'middle' },
        digits(value),
      ),
    );
  }
  shown.series.forEach((row, i) => {
    const y = 12 + ROW * i;
    const [median, low, high] = [row.median, row.low, row.high].map(([v]) => x(v ?? 0));
    const look = `bnb-series-${Math.max(0, KINDS.indexOf(kinds.get(row.label) ?? ''))}`;
    plot.append(
      svg('rect', {
        class: `bnb-plot-bar ${look}`,
        x: LEFT,
        y: y + 4,
        width: median - LEFT,
        height: ROW - 12,
      }),
      svg('line', { class: 'bnb-plot-whisker', x1: low, x2: high, y1: y + ROW / 2 - 2, y2: y + ROW / 2 - 2 }),
      svg(
        'text',
        { class: 'bnb-plot-label', x: LEFT - 8, y: y + ROW / 2 + 2, 'text-anchor': 'end' },
        row.label,
      ),
    );
  });
  const title = `time (${shown.unit}): median and interquartile range`;
  plot.append(
    svg('path', { class: 'bnb-plot-axis', d: `M${LEFT} 8V${bottom}H${WIDTH - 24}` }),
    svg(
      'text',
      { class: 'bnb-plot-label', x: (LEFT + WIDTH - 24) / 2, y: bottom + 36, 'text-anchor': 'middle' },
      title,
    ),
  );
  return plot;
}
