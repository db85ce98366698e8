/**
 * The roofline: ceilings measured on the device, the kernel's point with its earlier versions as a trajectory, baselines as labelled
 * points. A filled shape stands at the bytes that memory must move at least, a hollow one at those that the caches were asked for.
 */

import { scaleLog } from 'd3-scale';
import { line, symbolCircle, symbolSquare, symbolTriangle } from 'd3-shape';

import { h, svg } from '../dom';
import { EDGE, explore, frame, HEIGHT, mark, powers, WIDTH } from '../plot/frame';
import { count, digits, tick, time } from '../plot/numbers';
import { table } from '../plot/table';
import type { Ceiling, PointKind, Roofline, RooflinePoint } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

export const roofline: ViewSpec = {
  key: 'roofline',
  title: 'Roofline',
  empty: (doc) =>
    doc.roofline
      ? null
      : `Nothing was measured for a roofline yet: %roofline ${doc.kernel} in a cell shows one.`,
  mount: (panel, store) => new RooflineView(panel, store),
};

/** Room for the names of the flat roofs, beside the plot: points crowd below them. */
const RIGHT = 160;

const SHAPES = { kernel: symbolCircle, version: symbolTriangle, baseline: symbolSquare } as const;
const MEANING: Record<PointKind, string> = {
  kernel: '● this kernel',
  version: '▲ an earlier version',
  baseline: '■ a baseline',
};

/** A point with a place: how many flops for each byte, and TFLOP/s. */
export interface Placed {
  point: RooflinePoint;
  intensity: number;
  rate: number;
  issued: number | null;
}

/** The points that have a place: those with flops and bytes. */
export function placed(part: Roofline): Placed[] {
  return part.points
    .filter((p) => p.flops && p.bytes)
    .map((point) => ({
      point,
      intensity: point.flops! / point.bytes!,
      rate: point.flops! / point.milliseconds / 1e9,
      issued:
        point.issued_bytes && point.issued_bytes !== point.bytes ? point.flops! / point.issued_bytes : null,
    }));
}

/** In the table only: nobody knows how much a point moves through shared memory, and memory is drawn once, for a copy. */
const NOT_DRAWN = ['shared memory', 'memory reads', 'memory writes'];

/** The slanted roofs and the flat ones. */
export function roofs(part: Roofline): { slanted: Ceiling[]; flat: Ceiling[] } {
  return {
    slanted: part.ceilings.filter((c) => c.unit === 'GB/s' && !NOT_DRAWN.includes(c.name)),
    flat: part.ceilings.filter((c) => c.unit === 'TFLOP/s'),
  };
}

class RooflineView implements Mounted {
  private readonly plot = h('div.bnb-plot-place');
  private readonly status = h('p.bnb-quiet.bnb-told', { role: 'status' });
  private readonly below = h('div.bnb-results', {
    tabindex: 0,
    role: 'region',
    'aria-label': 'The roofline in numbers',
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
    const part = this.store.doc.roofline;
    if (!part) {
      this.plot.replaceChildren(h('p.bnb-empty', {}, roofline.empty(this.store.doc, this.store) ?? ''));
      this.below.replaceChildren();
      return;
    }
    const points = placed(part);
    this.status.textContent = points.length ? 'Point at a shape, or reach it with Tab and the arrows.' : '';
    this.plot.replaceChildren(
      points.length && part.ceilings.length ? draw(part, points, (t) => (this.status.textContent = t)) : '',
    );
    const kinds = (['kernel', 'version', 'baseline'] as const).filter((k) =>
      part.points.some((p) => p.kind === k),
    );
    const hollow = points.some((p) => p.issued !== null)
      ? ['a hollow shape counts the bytes of every access']
      : [];
    this.below.replaceChildren(
      h('p.bnb-legend', {}, [...kinds.map((k) => MEANING[k]), ...hollow].join(', ')),
      pointTable(part),
      ceilingTable(part),
      part.note ? h('p.bnb-quiet', {}, part.note) : '',
    );
  }
}

function draw(part: Roofline, points: Placed[], tell: (text: string) => void): SVGSVGElement {
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
  const made = frame(
    `Roofline of ${part.device}`,
    { title: 'flops for each byte', ticks: powers(x, 10, 8, (v) => tick(v, 10)) },
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
    made.area.append(
      svg('path', { class: 'bnb-roof', d: path([start, [end, (end * roof.value) / 1e3]]) }),
      svg(
        'text',
        {
          class: 'bnb-roof-label',
          transform: `translate(${x(start[0]) + 14} ${y(start[1]) - 16}) rotate(${slope})`,
        },
        `${roof.name} ${digits(roof.value)} ${roof.unit}`,
      ),
    );
  }
  let free = EDGE.top - 8;
  for (const roof of [...flat].sort((a, b) => b.value - a.value)) {
    const start = steepest ? Math.min(right, (roof.value * 1e3) / steepest) : left;
    free = Math.max(y(roof.value) + 4, free + 13);
    made.area.append(
      svg('path', {
        class: 'bnb-roof bnb-roof-flat',
        d: path([
          [start, roof.value],
          [right, roof.value],
        ]),
      }),
      svg(
        'text',
        { class: 'bnb-roof-label', x: WIDTH - RIGHT + 6, y: free },
        `${roof.name} ${digits(roof.value)} ${roof.unit}`,
      ),
    );
  }
  const trail = points.filter((p) => p.point.kind !== 'baseline');
  const story = [
    ...trail.filter((p) => p.point.kind === 'version'),
    ...trail.filter((p) => p.point.kind === 'kernel').slice(0, 1),
  ];
  if (story.length > 1) {
    made.area.append(svg('path', { class: 'bnb-trail', d: path(story.map((p) => [p.intensity, p.rate])) }));
  }
  const marks: SVGGElement[] = [];
  const taken: [number, number][] = [];
  const first = (p: Placed): number => Number(p.point.kind !== 'kernel');
  for (const p of [...points].sort((a, b) => first(a) - first(b) || b.rate - a.rate)) {
    const text = described(p);
    const shape = SHAPES[p.point.kind];
    if (p.issued !== null) {
      made.area.append(
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
        `${p.point.label}, issued bytes: ${count(p.point.issued_bytes)} asked of the caches, ${digits(p.issued)} flops for each`,
        50,
      );
      made.area.append(hollow);
      marks.push(hollow);
    }
    const made_mark = mark(shape, x(p.intensity), y(p.rate), `bnb-kind-${p.point.kind}`, text);
    made.area.append(made_mark);
    marks.push(made_mark);
    const own = y(p.rate) + 4;
    const free = (at: number): boolean =>
      !taken.some(([tx, ty]) => Math.abs(tx - x(p.intensity)) < 120 && Math.abs(ty - at) < 12);
    const at = NEAR.map((step) => own + step).find(free) ?? own;
    taken.push([x(p.intensity), at]);
    const inner = x(p.intensity) > WIDTH - RIGHT - 130;
    made.area.append(
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
  explore([marks], tell);
  return made.element;
}

/** How far from its point a label may stand, above or below, the nearest place first. */
const NEAR = Array.from({ length: 24 }, (_, i) => (i % 2 ? 1 : -1) * 4 * Math.ceil(i / 2));

/** A point in a sentence. */
export function described({ point, intensity, rate }: Placed): string {
  const near = point.percent === undefined ? '' : `, ${digits(point.percent)} % of ${point.roof}`;
  const about = point.about ? ` (${point.about})` : '';
  return (
    `${point.label} (${point.kind}): ${time(point.milliseconds)}, from ${time(point.low)} to ${time(point.high)}; ` +
    `${digits(rate)} TFLOP/s at ${digits(intensity)} flops for each byte${near}${about}`
  );
}

function pointTable(part: Roofline): HTMLElement {
  const head = [
    '',
    'what',
    'time',
    'of roof',
    'TFLOP/s',
    'GB/s',
    'flops/byte',
    'flops',
    'unique bytes',
    'issued bytes',
    'middle half',
  ];
  const rows = part.points.map((p) => [
    p.label,
    p.kind,
    time(p.milliseconds),
    p.percent === undefined ? '' : `${digits(p.percent)} % of ${p.roof}`,
    p.flops === null ? '' : digits(p.flops / p.milliseconds / 1e9),
    p.bytes === null ? '' : digits(p.bytes / p.milliseconds / 1e6),
    p.flops !== null && p.bytes ? digits(p.flops / p.bytes) : '',
    count(p.flops),
    count(p.bytes),
    p.issued_bytes === undefined ? '' : count(p.issued_bytes),
    `${time(p.low)} to ${time(p.high)}`,
  ]);
  return table('launches: work counted from the IR, times with cold caches', head, rows);
}

function ceilingTable(part: Roofline): HTMLElement {
  const rows = part.ceilings.map((c) => [
    c.name,
    `${digits(c.value)} ${c.unit}`,
    c.low === undefined || c.high === undefined ? '' : `${digits(c.low)} to ${digits(c.high)}`,
    c.how,
  ]);
  return table(
    `ceilings of ${part.device}, measured ${part.measured}`,
    ['', 'rate', 'middle half', 'measured by'],
    rows,
  );
}
