/**
 * What the plots of a sweep, a benchmark and a history show, as numbers (blocknb/notebook/plot_data.py makes the same numbers for
 * Matplotlib). The tests of both sides compare theirs with tests/fixtures/plotted.json.
 */

import type { Sweep, Time } from '../schema';

export type Numbers = (number | null)[];

/** What a plot of a sweep shows. */
export type Quantity = 'time' | 'rate';

/** One line: the median with its quartiles for each point. */
export interface PlottedSeries {
  label: string;
  kind: string;
  median: Numbers;
  low: Numbers;
  high: Numbers;
}

/** The lines of a plot and their unit. */
export interface PlottedSweep {
  unit: string;
  series: PlottedSeries[];
}

/** For each unit of a document: the least largest value from which a unit fits, that unit, and the factor to it. */
const UNITS: Readonly<Record<string, readonly (readonly [number, string, number])[]>> = {
  ms: [
    [1e4, 's', 1e-3],
    [1, 'ms', 1],
    [1e-3, 'µs', 1e3],
    [0, 'ns', 1e6],
  ],
  'TFLOP/s': [
    [1, 'TFLOP/s', 1],
    [1e-3, 'GFLOP/s', 1e3],
    [0, 'MFLOP/s', 1e6],
  ],
  'GFLOP/s': [
    [1e3, 'TFLOP/s', 1e-3],
    [1, 'GFLOP/s', 1],
    [0, 'MFLOP/s', 1e3],
  ],
  'GB/s': [
    [1, 'GB/s', 1],
    [0, 'MB/s', 1e3],
  ],
};

/** Returns the unit in which the largest value reads well, and the factor to it. */
export function fitting(unit: string, largest: number): { unit: string; factor: number } {
  const rows = UNITS[unit];
  const [, name, factor] = rows.find(([least]) => largest >= least) ?? rows[rows.length - 1];
  return { unit: name, factor };
}

/** Returns the quantities that a sweep can show, the measured one first. */
export function quantities(part: Sweep): Quantity[] {
  if (part.unit === 'ms') {
    return ['time'];
  }
  return part.amounts ? ['rate', 'time'] : ['rate'];
}

/** Returns the lines of a sweep as a rate or a time. */
export function plottedSweep(part: Sweep, show: Quantity = quantities(part)[0]): PlottedSweep {
  const inverse = show === 'time' && part.unit !== 'ms';
  const columns = part.series.map((s) =>
    inverse
      ? [s.median, s.high, s.low].map((c) => divided(part.amounts ?? [], c))
      : [s.median, s.low, s.high],
  );
  const largest = Math.max(0, ...columns.flatMap(([median]) => median).map((v) => v ?? 0));
  const { unit, factor } = fitting(inverse ? 'ms' : part.unit, largest);
  const scaled = (column: Numbers): Numbers => column.map((v) => (v === null ? null : v * factor));
  return {
    unit,
    series: part.series.map(({ label, kind }, i) => {
      const [median, low, high] = columns[i].map(scaled);
      return { label, kind, median, low, high };
    }),
  };
}

function divided(amounts: Numbers, rates: Numbers): Numbers {
  return rates.map((rate, i) => (amounts[i] && rate ? amounts[i] / rate : null));
}

/** Returns times by label in a unit that fits; entries without a time are left out. */
export function plottedTimes(entries: readonly (readonly [string, Time | null | undefined])[]): PlottedSweep {
  const known = entries.flatMap(([label, time]) => (time ? [{ label, time }] : []));
  const { unit, factor } = fitting('ms', Math.max(0, ...known.map(({ time }) => time.median)));
  const one = (value: number): Numbers => [value * factor];
  return {
    unit,
    series: known.map(({ label, time: { median, low, high } }) => ({
      label,
      kind: '',
      median: one(median),
      low: one(low),
      high: one(high),
    })),
  };
}

/** Tells whether an axis with these values is logarithmic unless the user asks for another scale. */
export function isLogarithmic(values: readonly unknown[]): boolean {
  const numbers = values.filter((v): v is number => typeof v === 'number');
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  if (numbers.length < values.length || !numbers.length || low <= 0 || low === high) {
    return false;
  }
  return high / low >= 8 || numbers.every((v) => Number.isInteger(Math.log2(v)));
}

/** The points of a sweep as texts: "1024", or "1024" and "4". */
export function points(part: Sweep): string[][] {
  const first = part.values.map(String);
  return part.second
    ? first.flatMap((a) => part.second!.values.map((b) => [a, String(b)]))
    : first.map((a) => [a]);
}

/** A cell of a table of numbers. */
export type Cell = string | number | boolean | null;

/** Returns the rows of a sweep with their head, as `Sweep.to_csv` in Python writes them. */
export function sweepRecords(part: Sweep): Cell[][] {
  const rated = part.unit !== 'ms';
  const times = part.series.map((s) =>
    rated ? [s.median, s.high, s.low].map((c) => divided(part.amounts ?? [], c)) : [s.median, s.low, s.high],
  );
  const head = [
    part.axis,
    ...(part.second ? [part.second.axis] : []),
    'label',
    'kind',
    'ms',
    'ms_low',
    'ms_high',
  ];
  const values = part.values.flatMap((a): Cell[][] => part.second?.values.map((b) => [a, b]) ?? [[a]]);
  const rows = values.flatMap((point, i) =>
    part.series.map((s, j): Cell[] => [
      ...point,
      s.label,
      s.kind,
      ...times[j].map((column) => column[i] ?? null),
      ...(rated ? [s.median[i], s.low[i], s.high[i], part.unit] : []),
      s.device ?? part.device ?? '',
    ]),
  );
  return [[...head, ...(rated ? ['rate', 'rate_low', 'rate_high', 'unit'] : []), 'device'], ...rows];
}
