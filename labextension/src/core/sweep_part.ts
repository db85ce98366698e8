/** The part of a document on measurements over the values of a parameter, and its check. */

import {
  all,
  type Check,
  count,
  either,
  flag,
  holds,
  list,
  nullable,
  number,
  object,
  oneOf,
  shaped,
  word,
} from './check';

/** One series of a sweep, with a number per value, or null if it was not measured. */
export interface SweepSeries {
  label: string;
  /** "roof": the ceiling of a device. */
  kind: 'kernel' | 'baseline' | 'roof';
  median: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
  /** The device of this line, if the lines belong to several ones. */
  device?: string;
}

/** A value of an axis. */
export type AxisValue = number | string | boolean;

/**
 * Measurements of a kernel and its baselines over the values of one parameter, or of two: at least `n` runs for each number. With a
 * second axis, a series has all its values for the first value of the first axis, and so on. `amounts` has a number per point: divided
 * by milliseconds, it gives a rate in the unit.
 */
export interface Sweep {
  axis: string;
  values: AxisValue[];
  second?: { axis: string; values: AxisValue[] };
  amounts?: (number | null)[];
  unit: 'GB/s' | 'TFLOP/s' | 'GFLOP/s' | 'ms';
  n?: number;
  cold?: boolean;
  device?: string;
  series: SweepSeries[];
  cancelled?: boolean;
  /** A sentence about the best point. */
  answer?: string;
  /** No point is the best: the differences are within noise. */
  undecided?: boolean;
  notes?: string[];
}

const figures = list(nullable(number(0, 1e30)), 1000);
const axisValues = list(either(number(), word, flag), 1000);
const series = shaped<SweepSeries>(
  { label: word, kind: oneOf('kernel', 'baseline', 'roof'), median: figures, low: figures, high: figures },
  { device: word },
);
/** The check of a sweep. */
export const sweep: Check = all(
  shaped<Sweep>(
    {
      axis: word,
      values: axisValues,
      unit: oneOf('GB/s', 'TFLOP/s', 'GFLOP/s', 'ms'),
      series: list(series, 100),
    },
    {
      cancelled: flag,
      answer: word,
      undecided: flag,
      notes: list(word, 1000),
      n: count,
      cold: flag,
      device: word,
      second: object({ axis: word, values: axisValues }),
      amounts: figures,
    },
  ),
  holds<Sweep>(
    ({ values, second, amounts, series }) =>
      [...series.flatMap((s) => [s.median, s.low, s.high]), ...(amounts ? [amounts] : [])].every(
        (numbers) => numbers.length === values.length * (second?.values.length ?? 1),
      ),
    'a sweep with a number for each point',
  ),
);
