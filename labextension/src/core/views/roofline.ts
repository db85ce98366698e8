/**
 * The Roofline view: ceilings measured on the device, the kernel with the trajectory of its earlier versions, and baselines. A filled
 * shape uses the unique bytes of a launch, a hollow one the bytes of all accesses.
 */

import { scaleLog } from 'd3-scale';
import { line, symbolCircle, symbolSquare, symbolTriangle } from 'd3-shape';

import { h, svg } from '../dom';
import { saveButtons } from '../plot/export';
import { measureControls } from '../measure';
import { EDGE, explore, frame, HEIGHT, mark, powers, WIDTH } from '../plot/frame';
import { age, count, digits, rate, tick, timing } from '../plot/numbers';
import type { Cell } from '../plot/series';
import { table } from '../plot/table';
import type { Ceiling, PointKind, Roofline, RooflinePoint } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

export const roofline: ViewSpec = {
  key: 'roofline',
  title: 'Roofline',
  tooltip: 'How close the launch comes to the limits of the device',
  empty: (doc, store) =>
    doc.roofline
      ? null
      : store.host.request
        ? 'No roofline was measured yet. The first one of a device takes some seconds, to measure its limits.'
        : `There is no roofline yet. Run %roofline ${doc.kernel} in a cell to measure one.`,
  mount: (panel, store) => new RooflineView(panel, store),
  measure: (store) =>
    measureControls(store, 'roofline', 'Measure the launch of the cell against the limits of its device'),
};

/** Width of the right margin, which holds the names of the horizontal ceilings. */
const RIGHT = 160;

const SHAPES = { kernel: symbolCircle, version: symbolTriangle, baseline: symbolSquare } as const;
const LEGEND: Record<PointKind, string> = {
  kernel: '● this kernel',
  version: '▲ earlier version',
  baseline: '■ baseline',
};

/** A point with its coordinates. */
export interface PlottedPoint {
  point: RooflinePoint;
  /** Arithmetic intensity in flops per byte. */
  intensity: number;
  /** TFLOP/s. */
  rate: number;
  /** Arithmetic intensity with the bytes of all accesses, if that differs. */
  issued: number | null;
}

/** Returns the points that the plot can show: those with flops and bytes. */
export function plottedPoints(part: Roofline): PlottedPoint[] {
  return part.points
    .filter((p) => p.flops && p.bytes)
    .map((point) => ({
      point,
      intensity: point.flops! / point.bytes!,
      rate: point.flops! / point.time.median / 1e9,
      issued:
        point.issued_bytes && point.issued_bytes !== point.bytes ? point.flops! / point.issued_bytes : null,
    }));
}

/** Ceilings that only the table shows. A launch has no byte count for shared memory, and the copy stands for all of memory. */
const NOT_DRAWN = ['shared memory', 'memory reads', 'memory writes'];

/** Returns the slanted ceilings (bandwidth) and the horizontal ones (arithmetic). */
export function roofs(part: Roofline): { slanted: Ceiling[]; flat: Ceiling[] } {
  return {
    slanted: part.ceilings.filter((c) => c.unit === 'GB/s' && !NOT_DRAWN.includes(c.name)),
    flat: part.ceilings.filter((c) => c.unit === 'TFLOP/s'),
  };
}

class RooflineView implements Mounted {
  private readonly tools = h('div.bnb-tools');
  private readonly plot = h('div.bnb-plot-place');
  private readonly status = h('p.bnb-quiet.bnb-description', { role: 'status' });
  private readonly below = h('div.bnb-results', {
    tabindex: 0,
    role: 'region',
    'aria-label': 'Roofline as tables',
  });

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    panel.append(this.tools, this.plot, this.status, this.below);
    this.paint();
  }

  update(change: string): void {
    if (change === 'document') {
      this.paint();
    }
  }

  private paint(): void {
    const part = this.store.doc.roofline;
    if (!part) {
      this.tools.replaceChildren();
      this.plot.replaceChildren(h('p.bnb-empty', {}, roofline.empty(this.store.doc, this.store) ?? ''));
      this.below.replaceChildren();
      return;
    }
    const points = plottedPoints(part);
    const plot = (): SVGSVGElement | null => this.plot.querySelector('svg');
    this.tools.replaceChildren(
      ...saveButtons(`${this.store.doc.kernel}-roofline`, plot, () => rooflineRecords(part)),
    );
    this.status.textContent = points.length ? 'Hover over a shape, or use Tab and the arrow keys.' : '';
    this.plot.replaceChildren(
      points.length && part.ceilings.length ? draw(part, points, (t) => (this.status.textContent = t)) : '',
    );
    const kinds = (['kernel', 'version', 'baseline'] as const).filter((k) =>
      part.points.some((p) => p.kind === k),
    );
    const hollow = points.some((p) => p.issued !== null)
      ? ['hollow: issued bytes (all accesses) instead of unique bytes']
      : [];
    this.below.replaceChildren(
      h('p.bnb-legend', {}, [...kinds.map((k) => LEGEND[k]), ...hollow].join(', ')),
      pointTable(part),
      ceilingTable(part),
      part.note ? h('p.bnb-quiet', {}, part.note) : '',
    );
  }
}

function draw(part: Roofline, points: PlottedPoint[], onDescribe: (text: string) => void): SVGSVGElement {
  const { slanted, flat } = roofs(part);
  const ridges = slanted.flatMap((s) => flat.map((f) => (f.value * 1e3) / s.value));
  const xs = [
    ...points.flatMap((p) => (p.issued === null ? [p.intensity] : [p.intensity, p.issued])),
    ...ridges,
  ];
  const left = Math.min(...xs) / 3;
  const right = Math.max(...xs) * 3;
  const rates = [
    ...points.map((p) => p.rate),
    ...flat.map((f) => f.value),
    ...slanted.map((s) => (left * s.value) / 1e3),
  ];
  const x = scaleLog([left, right], [EDGE.left, WIDTH - RIGHT]);
  const y = scaleLog([Math.min(...rates) / 2, Math.max(...rates) * 2], [HEIGHT - EDGE.bottom, EDGE.top]);
  const plot = frame(
    `Roofline of ${part.device}`,
    { title: 'arithmetic intensity (FLOP/byte)', ticks: powers(x, 10, 8, (v) => tick(v, 10)) },
    { title: 'TFLOP/s', ticks: powers(y, 10, 7, (v) => tick(v, 10)) },
    RIGHT,
  );
  const path = line<[number, number]>(
    (p) => x(p[0]),
    (p) => y(p[1]),
  );
  const top = Math.max(...flat.map((f) => f.value), 0) || y.domain()[1];
  const steepest = Math.max(...slanted.map((s) => s.value), 0);
  for (const roof of slanted) {
    const end = Math.min(right, (top * 1e3) / roof.value);
    const start: [number, number] = [left, (left * roof.value) / 1e3];
    const slope = (-Math.atan2(y(1) - y(10), x(10) - x(1)) * 180) / Math.PI;
    plot.area.append(
      svg('path', { class: 'bnb-roof', d: path([start, [end, (end * roof.value) / 1e3]]) }),
      svg(
        'text',
        {
          class: 'bnb-roof-label',
          transform: `translate(${x(start[0]) + 14} ${y(start[1]) - 16}) rotate(${slope})`,
        },
        `${roof.name} ${rate(roof)}`,
      ),
    );
  }
  let free = EDGE.top - 8;
  for (const roof of [...flat].sort((a, b) => b.value - a.value)) {
    const start = steepest ? Math.min(right, (roof.value * 1e3) / steepest) : left;
    free = Math.max(y(roof.value) + 4, free + 13);
    plot.area.append(
      svg('path', {
        class: 'bnb-roof bnb-roof-flat',
        d: path([
          [start, roof.value],
          [right, roof.value],
        ]),
      }),
      svg('text', { class: 'bnb-roof-label', x: WIDTH - RIGHT + 6, y: free }, `${roof.name} ${rate(roof)}`),
    );
  }
  const trajectory = [
    ...points.filter((p) => p.point.kind === 'version'),
    ...points.filter((p) => p.point.kind === 'kernel').slice(0, 1),
  ];
  if (trajectory.length > 1) {
    const d = path(trajectory.map((p) => [p.intensity, p.rate]));
    plot.area.append(svg('path', { class: 'bnb-trajectory', d }));
  }
  const marks: SVGGElement[] = [];
  const taken: [number, number][] = [];
  const first = (p: PlottedPoint): number => Number(p.point.kind !== 'kernel');
  for (const p of [...points].sort((a, b) => first(a) - first(b) || b.rate - a.rate)) {
    const text = describePoint(p);
    const shape = SHAPES[p.point.kind];
    if (p.issued !== null) {
      plot.area.append(
        svg('path', {
          class: 'bnb-issued-line',
          d: path([
            [p.issued, p.rate],
            [p.intensity, p.rate],
          ]),
        }),
      );
      const hollow = mark(
        shape,
        x(p.issued),
        y(p.rate),
        `bnb-issued bnb-kind-${p.point.kind}`,
        `${p.point.label}, issued bytes: ${count(p.point.issued_bytes)}, ${digits(p.issued)} FLOP/byte`,
        50,
      );
      plot.area.append(hollow);
      marks.push(hollow);
    }
    const filled = mark(shape, x(p.intensity), y(p.rate), `bnb-kind-${p.point.kind}`, text);
    plot.area.append(filled);
    marks.push(filled);
    const own = y(p.rate) + 4;
    const free = (at: number): boolean =>
      !taken.some(([tx, ty]) => Math.abs(tx - x(p.intensity)) < 120 && Math.abs(ty - at) < 12);
    const at = LABEL_OFFSETS.map((step) => own + step).find(free) ?? own;
    taken.push([x(p.intensity), at]);
    const inner = x(p.intensity) > WIDTH - RIGHT - 130;
    plot.area.append(
      svg(
        'text',
        {
          class: 'bnb-point-label',
          x: x(p.intensity) + (inner ? -11 : 11),
          y: at,
          'text-anchor': inner ? 'end' : 'start',
        },
        p.point.label,
      ),
    );
  }
  explore([marks], onDescribe);
  return plot.element;
}

/** Vertical offsets of a label from its point in px, the smallest first. */
const LABEL_OFFSETS = Array.from({ length: 24 }, (_, i) => (i % 2 ? 1 : -1) * 4 * Math.ceil(i / 2));

/** Describes a point. */
export function describePoint({ point, intensity, rate: value }: PlottedPoint): string {
  const near = point.percent === undefined ? '' : `, ${digits(point.percent)} % of ${point.roof}`;
  const about = point.about ? ` (${point.about})` : '';
  return (
    `${point.label} (${point.kind}): ${timing(point.time)}; ` +
    `${rate({ value, unit: 'TFLOP/s' })} at ${digits(intensity)} FLOP/byte${near}${about}`
  );
}

function pointTable(part: Roofline): HTMLElement {
  const head = [
    '',
    'kind',
    'time',
    'of ceiling',
    'arithmetic',
    'memory',
    'FLOP/byte',
    'FLOP',
    'unique bytes',
    'issued bytes',
  ];
  const rows = part.points.map((p) => [
    p.label,
    p.kind,
    timing(p.time),
    p.percent === undefined ? '' : `${digits(p.percent)} % of ${p.roof}`,
    p.flops === null ? '' : rate({ value: p.flops / p.time.median / 1e9, unit: 'TFLOP/s' }),
    p.bytes === null ? '' : rate({ value: p.bytes / p.time.median / 1e6, unit: 'GB/s' }),
    p.flops !== null && p.bytes ? digits(p.flops / p.bytes) : '',
    count(p.flops),
    count(p.bytes),
    p.issued_bytes === undefined ? '' : count(p.issued_bytes),
  ]);
  return table('Launches: work counted from the IR', head, rows);
}

function ceilingTable(part: Roofline): HTMLElement {
  const rows = part.ceilings.map((c) => [
    c.name,
    rate(c),
    c.low === undefined || c.high === undefined
      ? ''
      : `${rate({ value: c.low, unit: c.unit })} to ${rate({ value: c.high, unit: c.unit })}`,
    c.how,
  ]);
  return table(
    `Ceilings of ${part.device}, measured ${part.measured}${part.age ? `, ${age(part.age)} before the launches` : ''}`,
    ['', 'rate', 'interquartile range', 'measured by'],
    rows,
  );
}

/** Returns the points with their head, for a CSV file. */
export function rooflineRecords(part: Roofline): Cell[][] {
  const head = [
    'label',
    'kind',
    'flops',
    'bytes',
    'roof',
    'percent',
    'ms',
    'ms_low',
    'ms_high',
    'tflops',
    'gbytes',
    'flop_per_byte',
  ];
  const rows = part.points.map(({ label, kind, flops, bytes, roof, percent, time }): Cell[] => [
    label,
    kind,
    flops,
    bytes,
    roof ?? null,
    percent ?? null,
    time.median,
    time.low,
    time.high,
    flops === null ? null : flops / time.median / 1e9,
    bytes === null ? null : bytes / time.median / 1e6,
    flops !== null && bytes ? flops / bytes : null,
  ]);
  return [head, ...rows];
}
