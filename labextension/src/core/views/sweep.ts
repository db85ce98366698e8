/**
 * The Sweep view: rate or time of the kernel and its baselines over a parameter, with bands for the interquartile range. A sweep of two
 * parameters is a heat map of one series.
 */

import { scaleLinear, scaleLog } from 'd3-scale';
import { area, line } from 'd3-shape';

import { h, svg } from '../dom';
import { saveButtons } from '../plot/export';
import { measureControls, textField } from '../measure';
import type { Scale, Tick } from '../plot/frame';
import { DASHES, EDGE, explore, frame, HEIGHT, mark, powers, SHAPES, WIDTH } from '../plot/frame';
import { heatMap } from '../plot/heatmap';
import { digits, tick } from '../plot/numbers';
import {
  isLogarithmic,
  type PlottedSeries,
  type PlottedSweep,
  plottedSweep,
  points,
  quantities,
  type Quantity,
  sweepRecords,
} from '../plot/series';
import { table } from '../plot/table';
import type { Sweep } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

export const sweep: ViewSpec = {
  key: 'sweep',
  title: 'Sweep',
  tooltip: 'Times over the values of a constant or of a problem size',
  empty: (doc, store) =>
    doc.sweep
      ? null
      : store.host.request
        ? 'No sweep was measured yet. Choose a constant or an option, and the values to measure.'
        : 'There is no sweep. %%blockkernel --sweep NAME=VALUES measures the kernel over a tile size or a problem size.',
  mount: (panel, store) => new SweepView(panel, store),
  measure: controls,
};

type ScaleKind = 'linear' | 'log';
/** Creates the fields of a sweep: a constant or an option, and its values, by default those of the sweep shown or of its knob. */
function controls(store: Store): HTMLElement {
  const { constants = [], num_warps, num_stages } = store.doc.knobs ?? {};
  const options = Object.entries({ num_warps, num_stages }).map(([name, knob]) => ({
    name,
    choices: knob?.choices ?? [],
  }));
  const axes = [...constants, ...options];
  const axis = h('select.bnb-select', {
    'aria-label': 'Axis of the sweep',
    title: 'What changes in the sweep',
  });
  axis.append(...axes.map(({ name }) => h('option', { value: name }, name)));
  const shown = store.doc.sweep;
  if (shown && axes.some(({ name }) => name === shown.axis)) {
    axis.value = shown.axis;
  }
  const choices = (): string =>
    shown && !shown.second && shown.axis === axis.value
      ? shown.values.join(', ')
      : (axes.find(({ name }) => name === axis.value)?.choices ?? []).join(', ');
  const [label, values] = textField(
    'values',
    choices(),
    'Values separated by commas, or a range such as 64..1024',
  );
  axis.addEventListener('change', () => (values.value = choices()));
  const fields = {
    elements: [h('label', {}, 'over ', axis), label],
    content: () => ({ axis: axis.value, values: values.value }),
  };
  const tooltip = 'Measure the launch of the cell for each value';
  return measureControls(store, 'sweep', tooltip, fields, shown ? 'Measure again' : 'Measure');
}

class SweepView implements Mounted {
  private readonly tools = h('div.bnb-tools');
  private readonly answer = h('p', { 'data-part': 'answer' });
  private readonly again = h('div');
  private readonly plot = h('div.bnb-plot-place');
  private readonly status = h('p.bnb-quiet.bnb-description', { role: 'status' });
  private readonly below = h('div.bnb-results', {
    tabindex: 0,
    role: 'region',
    'aria-label': 'Sweep as a table',
  });
  /** The choices of the user. Without one, the view decides. */
  private quantity?: Quantity;
  private x?: ScaleKind;
  private y: ScaleKind = 'linear';
  private series = 0;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    panel.append(this.answer, this.tools, this.plot, this.status, this.below, this.again);
    this.paint();
  }

  update(change: string): void {
    if (change === 'document') {
      this.paint();
    }
  }

  private paint(): void {
    const part = this.store.doc.sweep;
    this.answer.hidden = !part?.answer;
    this.answer.textContent = part?.answer ?? '';
    this.answer.classList.toggle('bnb-verdict', !part?.undecided);
    this.again.replaceChildren(part && this.store.host.request ? controls(this.store) : '');
    if (!part) {
      this.tools.replaceChildren();
      this.plot.replaceChildren(h('p.bnb-empty', {}, sweep.empty(this.store.doc, this.store) ?? ''));
      this.below.replaceChildren();
      return;
    }
    const some = part.values.length > 0;
    this.tools.replaceChildren(...(some ? this.controls(part) : []));
    this.draw(part);
  }

  /** Draws the plot and the table again, for instance with another scale. The controls stay, and keep the focus. */
  private draw(part: Sweep): void {
    const some = part.values.length > 0;
    const possible = quantities(part);
    const shown = plottedSweep(part, possible.find((q) => q === this.quantity) ?? possible[0]);
    const describe = (text: string): void => void (this.status.textContent = text);
    this.status.textContent = some ? 'Hover over a shape, or use Tab and the arrow keys.' : '';
    const drawn = part.second
      ? heatMap(part, shown.series[this.series] ?? shown.series[0], shown.unit, describe)
      : draw(part, shown, this.x, this.y, describe);
    this.plot.replaceChildren(some && shown.series.length ? drawn : '');
    this.below.replaceChildren(
      part.cancelled ? h('p.bnb-warning', {}, '▲ The sweep was interrupted. These results are partial.') : '',
      part.second ? '' : legend(shown),
      figures(part, shown),
      ...(part.notes ?? []).map((note) =>
        h(note.includes('✗') ? 'p.bnb-wrong' : 'p.bnb-quiet', {}, `▲ ${note}`),
      ),
    );
  }

  private controls(part: Sweep): HTMLElement[] {
    const scales = ['linear', 'log'] as const;
    const found: HTMLElement[] = [];
    const possible = quantities(part);
    if (possible.length > 1) {
      const shown = possible.find((q) => q === this.quantity) ?? possible[0];
      found.push(this.select('show ', possible, shown, part, (value) => (this.quantity = value)));
    }
    if (part.second) {
      const labels = part.series.map((s) => s.label);
      if (labels.length > 1) {
        const chosen = (label: string): void => void (this.series = labels.indexOf(label));
        found.push(this.select('series ', labels, labels[this.series] ?? labels[0], part, chosen));
      }
    } else {
      if (part.values.every((v) => typeof v === 'number' && v > 0)) {
        const usual = isLogarithmic(part.values) ? 'log' : 'linear';
        const shown = this.x ?? usual;
        found.push(this.select(`${part.axis} axis `, scales, shown, part, (value) => (this.x = value)));
      }
      found.push(this.select('vertical axis ', scales, this.y, part, (value) => (this.y = value)));
    }
    const plot = (): SVGSVGElement | null => this.plot.querySelector('svg');
    return [...found, ...saveButtons(`${this.store.doc.kernel}-sweep`, plot, () => sweepRecords(part))];
  }

  private select<T extends string>(
    label: string,
    values: readonly T[],
    chosen: T,
    part: Sweep,
    onChange: (value: T) => void,
  ): HTMLElement {
    const options = values.map((value) => h('option', { value, selected: value === chosen }, value));
    const select = h('select.bnb-select', {}, ...options);
    select.addEventListener('change', () => {
      onChange(select.value as T);
      this.draw(part);
    });
    return h('label', {}, label, select);
  }
}

/** Returns the x axis: linear or logarithmic for numbers, evenly spaced for other values. */
export function xAxis(part: Sweep, scale?: ScaleKind): { at: (i: number) => number; ticks: Tick[] } {
  const range: [number, number] = [EDGE.left + 16, WIDTH - EDGE.right - 16];
  const numbers = part.values.filter((v): v is number => typeof v === 'number');
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  if (numbers.length === part.values.length && high > low) {
    if (low > 0 && (scale ? scale === 'log' : isLogarithmic(part.values))) {
      const scaled: Scale = scaleLog([low, high], range).base(2);
      return { at: (i) => scaled(numbers[i]), ticks: powers(scaled, 2, 12, (v) => tick(v, 2)) };
    }
    const scaled: Scale = scaleLinear([low, high], range);
    return {
      at: (i) => scaled(numbers[i]),
      ticks: scaled.ticks(8).map((v) => ({ at: scaled(v), label: String(v) })),
    };
  }
  const at = (i: number) => range[0] + ((range[1] - range[0]) * (i + 0.5)) / part.values.length;
  return { at, ticks: part.values.map((v, i) => ({ at: at(i), label: String(v) })) };
}

/** Returns the y axis: linear from zero, or logarithmic around the numbers. */
function yAxis(shown: PlottedSweep, kind: ScaleKind): { y: Scale; ticks: Tick[] } {
  const range: [number, number] = [HEIGHT - EDGE.bottom, EDGE.top];
  const all = shown.series.flatMap((s) => [...s.median, ...s.low, ...s.high]);
  const known = all.filter((v): v is number => v !== null);
  const positive = known.filter((v) => v > 0);
  if (kind === 'log' && positive.length) {
    const y: Scale = scaleLog([Math.min(...positive) / 1.3, Math.max(...positive) * 1.3], range);
    const decades = powers(y, 10, 7, (v) => tick(v, 10));
    const ticks = decades.length > 1 ? decades : y.ticks(5).map((v) => ({ at: y(v), label: digits(v) }));
    return { y: y.clamp(true), ticks };
  }
  const y: Scale = scaleLinear([0, Math.max(...known, 0) * 1.08 || 1], range);
  return { y, ticks: y.ticks(6).map((v) => ({ at: y(v), label: digits(v) })) };
}

function draw(
  part: Sweep,
  shown: PlottedSweep,
  xKind: ScaleKind | undefined,
  yKind: ScaleKind,
  onDescribe: (text: string) => void,
): SVGSVGElement {
  const { at, ticks } = xAxis(part, xKind);
  const { y, ticks: yTicks } = yAxis(shown, yKind);
  const plot = frame(
    `${shown.unit} over ${part.axis}`,
    { title: part.axis, ticks },
    { title: shown.unit, ticks: yTicks },
  );
  const rows: SVGGElement[][] = [];
  shown.series.forEach((series, s) => {
    const index = part.values.map((_, i) => i);
    const has = (i: number) => series.median[i] !== null && series.median[i] !== undefined;
    const band = area<number>(
      at,
      (i) => y(series.low[i] ?? 0),
      (i) => y(series.high[i] ?? 0),
    ).defined(has);
    const path = line<number>(at, (i) => y(series.median[i] ?? 0)).defined(has);
    const look = `bnb-series-${s % 6}`;
    plot.area.append(
      svg('path', { class: `bnb-band ${look}`, d: band(index) }),
      svg('path', {
        class: `bnb-line ${look}`,
        d: path(index),
        'stroke-dasharray': DASHES[s % DASHES.length] || null,
      }),
    );
    rows.push(
      index.filter(has).map((i) => {
        const text = describePoint(part, series, shown.unit, i);
        return mark(SHAPES[s % SHAPES.length], at(i), y(series.median[i]!), look, text);
      }),
    );
  });
  plot.area.append(...rows.flat());
  plot.element.append(fileLegend(shown));
  explore(rows, onDescribe);
  return plot.element;
}

/** The legend of a saved file; on the page, the legend is a list below the plot. */
function fileLegend(shown: PlottedSweep): SVGElement {
  const group = svg('g', { class: 'bnb-file-legend', 'aria-hidden': 'true' });
  shown.series.forEach((series, s) => {
    const [x, y] = [EDGE.left + 12, EDGE.top + 12 + 18 * s];
    group.append(key(s, x, y), svg('text', { x: x + 50, y: y + 4 }, series.label));
  });
  return group;
}

/** A piece of a line with its shape, centred at `x + 22`, `y`. */
function key(s: number, x: number, y: number): SVGElement {
  const look = `bnb-series-${s % 6}`;
  const shape = mark(SHAPES[s % SHAPES.length], x + 22, y, look, '', 50);
  shape.removeAttribute('tabindex');
  return svg(
    'g',
    {},
    svg('path', {
      class: `bnb-line ${look}`,
      d: `M${x + 2} ${y}H${x + 42}`,
      'stroke-dasharray': DASHES[s % DASHES.length] || null,
    }),
    shape,
  );
}

/** Describes one measured value. */
export function describePoint(part: Sweep, series: PlottedSeries, unit: string, i: number): string {
  const [median, low, high] = [series.median, series.low, series.high].map((column) =>
    digits(column[i] ?? NaN),
  );
  return `${series.label}, ${part.axis} = ${part.values[i]}: ${median} ${unit}, from ${low} to ${high}`;
}

function legend(shown: PlottedSweep): HTMLElement {
  const list = h('ul.bnb-legend-list');
  shown.series.forEach((series, s) => {
    const drawing = svg(
      'svg',
      { class: 'bnb-key', width: 44, height: 16, 'aria-hidden': 'true' },
      key(s, 0, 8),
    );
    list.append(h('li', {}, drawing, ` ${series.label}${series.kind === 'baseline' ? ' (baseline)' : ''}`));
  });
  return list;
}

function figures(part: Sweep, shown: PlottedSweep): HTMLElement {
  const better = TIMES.includes(shown.unit) ? Math.min : Math.max;
  const rows = points(part).map((point, i) => {
    const row = shown.series
      .filter((s) => s.kind !== 'roof')
      .map((s) => s.median[i])
      .filter((v): v is number => v !== null && v !== undefined);
    const best = better(...row);
    return [
      ...point,
      ...shown.series.map((s) => {
        const v = s.median[i];
        const star = v === best && s.kind !== 'roof' && shown.series.length > 1 ? ' ◂ best' : '';
        return v === null || v === undefined
          ? ''
          : `${digits(v)} (${digits(s.low[i] ?? v)} to ${digits(s.high[i] ?? v)})${star}`;
      }),
    ];
  });
  const axes = [part.axis, ...(part.second ? [part.second.axis] : [])];
  const head = [...axes, ...shown.series.map((s) => `${s.label}, ${shown.unit}`)];
  const how = [
    part.n ? `at least ${part.n} runs` : '',
    part.cold === undefined ? '' : part.cold ? 'cold caches' : 'warm caches',
    part.device ?? '',
  ].filter(Boolean);
  const about = how.length ? ` (${how.join(', ')})` : '';
  return table(`Medians in ${shown.unit}, with interquartile ranges${about}`, head, rows);
}

const TIMES = ['ns', 'µs', 'ms', 's'];
