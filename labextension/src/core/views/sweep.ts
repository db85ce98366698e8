/** The Sweep view: rate or time of the kernel and its baselines over a parameter, with bands for the interquartile range. */

import { scaleLinear, scaleLog } from 'd3-scale';
import { area, line } from 'd3-shape';

import { h, svg } from '../dom';
import { measureControls, textField } from '../measure';
import type { Scale, Tick } from '../plot/frame';
import { DASHES, EDGE, explore, frame, HEIGHT, mark, powers, SHAPES, WIDTH } from '../plot/frame';
import { digits, tick } from '../plot/numbers';
import { table } from '../plot/table';
import type { Sweep, SweepSeries } from '../schema';
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

/** Creates the fields of a sweep: a constant or an option, and its values, by default those of its knob. */
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
  const choices = (): string => (axes.find(({ name }) => name === axis.value)?.choices ?? []).join(', ');
  const [label, values] = textField(
    'values',
    choices(),
    'Values separated by commas, or a range such as 64..1024',
  );
  axis.addEventListener('change', () => (values.value = choices()));
  return measureControls(store, 'sweep', 'Measure the launch of the cell for each value', {
    elements: [h('label', {}, 'over ', axis), label],
    content: () => ({ axis: axis.value, values: values.value }),
  });
}

class SweepView implements Mounted {
  private readonly plot = h('div.bnb-plot-place');
  private readonly status = h('p.bnb-quiet.bnb-description', { role: 'status' });
  private readonly below = h('div.bnb-results', {
    tabindex: 0,
    role: 'region',
    'aria-label': 'Sweep as a table',
  });

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    panel.append(this.plot, this.status, this.below);
    this.paint();
  }

  update(change: string): void {
    if (change === 'document') {
      this.paint();
    }
  }

  private paint(): void {
    const part = this.store.doc.sweep;
    if (!part) {
      this.plot.replaceChildren(h('p.bnb-empty', {}, sweep.empty(this.store.doc, this.store) ?? ''));
      this.below.replaceChildren();
      return;
    }
    const some = part.values.length > 0;
    this.status.textContent = some ? 'Hover over a shape, or use Tab and the arrow keys.' : '';
    this.plot.replaceChildren(some ? draw(part, (text) => (this.status.textContent = text)) : '');
    this.below.replaceChildren(
      part.cancelled ? h('p.bnb-warning', {}, '▲ The sweep was interrupted. These results are partial.') : '',
      legend(part),
      figures(part),
      ...(part.notes ?? []).map((note) =>
        h(note.includes('✗') ? 'p.bnb-wrong' : 'p.bnb-quiet', {}, `▲ ${note}`),
      ),
    );
  }
}

/** Returns the x axis: linear or logarithmic for numbers, evenly spaced for other values. */
export function xAxis(part: Sweep): { at: (i: number) => number; ticks: Tick[] } {
  const range: [number, number] = [EDGE.left + 16, WIDTH - EDGE.right - 16];
  const numbers = part.values.filter((v): v is number => typeof v === 'number');
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  if (numbers.length === part.values.length && high > low) {
    if (low > 0 && (high / low >= 8 || numbers.every((n) => Number.isInteger(Math.log2(n))))) {
      const scale: Scale = scaleLog([low, high], range).base(2);
      return { at: (i) => scale(numbers[i]), ticks: powers(scale, 2, 12, (v) => tick(v, 2)) };
    }
    const scale: Scale = scaleLinear([low, high], range);
    return {
      at: (i) => scale(numbers[i]),
      ticks: scale.ticks(8).map((v) => ({ at: scale(v), label: String(v) })),
    };
  }
  const at = (i: number) => range[0] + ((range[1] - range[0]) * (i + 0.5)) / part.values.length;
  return { at, ticks: part.values.map((v, i) => ({ at: at(i), label: String(v) })) };
}

function draw(part: Sweep, onDescribe: (text: string) => void): SVGSVGElement {
  const { at, ticks } = xAxis(part);
  const all = part.series.flatMap((s) => [...s.median, ...s.high]).filter((v): v is number => v !== null);
  const y = scaleLinear([0, Math.max(...all, 0) * 1.08 || 1], [HEIGHT - EDGE.bottom, EDGE.top]);
  const plot = frame(
    `${part.unit} over ${part.axis}`,
    { title: part.axis, ticks },
    { title: part.unit, ticks: y.ticks(6).map((v) => ({ at: y(v), label: digits(v) })) },
  );
  const rows: SVGGElement[][] = [];
  part.series.forEach((series, s) => {
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
      index
        .filter(has)
        .map((i) =>
          mark(SHAPES[s % SHAPES.length], at(i), y(series.median[i]!), look, describePoint(part, series, i)),
        ),
    );
  });
  plot.area.append(...rows.flat());
  explore(rows, onDescribe);
  return plot.element;
}

/** Describes one measured value. */
export function describePoint(part: Sweep, series: SweepSeries, i: number): string {
  const [median, low, high] = [series.median, series.low, series.high].map((column) =>
    digits(column[i] ?? NaN),
  );
  return `${series.label}, ${part.axis} = ${part.values[i]}: ${median} ${part.unit}, from ${low} to ${high}`;
}

function legend(part: Sweep): HTMLElement {
  const list = h('ul.bnb-legend-list');
  part.series.forEach((series, s) => {
    const look = `bnb-series-${s % 6}`;
    const key = svg('svg', { class: 'bnb-key', width: 44, height: 16, 'aria-hidden': 'true' });
    key.append(
      svg('path', {
        class: `bnb-line ${look}`,
        d: 'M2 8H42',
        'stroke-dasharray': DASHES[s % DASHES.length] || null,
      }),
      mark(SHAPES[s % SHAPES.length], 22, 8, look, '', 50),
    );
    key.querySelector('g')?.removeAttribute('tabindex');
    list.append(h('li', {}, key, ` ${series.label}${series.kind === 'baseline' ? ' (baseline)' : ''}`));
  });
  return list;
}

function figures(part: Sweep): HTMLElement {
  const better = part.unit === 'ms' ? Math.min : Math.max;
  const rows = part.values.map((value, i) => {
    const row = part.series.map((s) => s.median[i]).filter((v): v is number => v !== null && v !== undefined);
    const best = better(...row);
    return [
      String(value),
      ...part.series.map((s) => {
        const v = s.median[i];
        const star = v === best && part.series.length > 1 ? ' ◂ best' : '';
        return v === null || v === undefined
          ? ''
          : `${digits(v)} (${digits(s.low[i] ?? v)} to ${digits(s.high[i] ?? v)})${star}`;
      }),
    ];
  });
  const head = [part.axis, ...part.series.map((s) => `${s.label}, ${part.unit}`)];
  const how = [
    part.n ? `at least ${part.n} runs` : '',
    part.cold === undefined ? '' : part.cold ? 'cold caches' : 'warm caches',
    part.device ?? '',
  ].filter(Boolean);
  const about = how.length ? ` (${how.join(', ')})` : '';
  return table(`Medians in ${part.unit}, with interquartile ranges${about}`, head, rows);
}
