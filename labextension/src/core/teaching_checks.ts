/** The checks of what the views that teach show (see `teaching.ts` for the meaning of each field). */

import {
  all,
  type Check,
  count,
  flag,
  holds,
  integer,
  line,
  list,
  nullable,
  number,
  object,
  oneOf,
  shaped,
  text,
  tuple,
  word,
} from './check';
import { helperSources } from './helpers';
import type {
  FootprintFacts,
  FootprintFinding,
  FootprintMap,
  LaunchArray,
  LaunchFacts,
  StepFacts,
  StepRun,
  StepValue,
} from './teaching';

const MOST_STEPS = 20_000;
const MOST_CELLS = 1 << 16;
const extent = integer(0, 2 ** 40);
const positive = integer(1, 2 ** 40);
const shape = list(extent, 16);
const grid = tuple(positive, positive, positive);
const kind = oneOf('load', 'store', 'atomic');

const array = shaped<LaunchArray>({
  name: word,
  dtype: word,
  bytes: number(0, 64),
  shape,
  rows: extent,
  columns: positive,
  wrapped: flag,
});

/** The content of the Launch view. Every index exists, and every list of rectangles is complete. */
export const launch: Check = all(
  shaped<LaunchFacts>(
    {
      grid,
      programs: positive,
      first: count,
      ordered: flag,
      arrays: list(array, 1000),
      ops: list(tuple(count, kind, line), 10_000),
      rects: list(list(integer(-1, 2 ** 40), 1000), 100_000),
      steps: list(
        tuple(tuple(count, count), count, tuple(count, count, count), list(tuple(count, count), 10_000)),
        MOST_STEPS,
      ),
      before: tuple(count, count, count),
      totals: tuple(count, count, count),
      machine: nullable(object({ chip: word, multiprocessors: positive, each: positive })),
      cut: flag,
      scope: text(1 << 16),
    },
    { loops: list(list(line, 100), 10_000) },
  ),
  holds<LaunchFacts>(
    ({ arrays, ops, rects, steps }) =>
      ops.every(([of]) => of < arrays.length) &&
      rects.every((flat) => flat.length % 4 === (flat[0] === -1 ? 1 : 0)) &&
      steps.every(([, , , accesses]) => accesses.every(([op, at]) => op < ops.length && at < rects.length)),
    'a launch whose steps fit',
  ),
);

const value = shaped<StepValue>(
  { dtype: word, shape },
  {
    text: text(1 << 12),
    kind: oneOf('u1', 'i4', 'f4', 'f8'),
    shown: tuple(integer(0, 4096), integer(0, 4096)),
    every: tuple(positive, positive),
    data: text(1 << 20),
    low: number(),
    high: number(),
    odd: count,
    on: count,
  },
);
const place = integer(-1, 2 ** 44);
const run = all(
  shaped<StepRun>(
    {
      program: count,
      events: list(
        tuple(place, oneOf('set', 'load', 'store', 'atomic'), word, text(1 << 12), integer(-1), integer(-1)),
        MOST_STEPS,
      ),
      cut: word,
      error: text(1 << 16),
    },
    { calls: list(list(place, 1000), MOST_STEPS) },
  ),
  holds<StepRun>(
    ({ events, calls }) => !calls || calls.length === events.length,
    'a run with the calls of each event',
  ),
);

/** The content of the Step view. Every value exists, and a value with elements has all facts about them. */
export const step: Check = all(
  shaped<StepFacts>(
    {
      grid,
      runs: list(run, 2, 1),
      values: list(value, 100_000),
      results: list(tuple(word, count), 1000),
      note: text(1 << 16),
    },
    { helpers: helperSources },
  ),
  holds<StepFacts>(
    ({ runs, values, results }) =>
      runs.every(({ events }) => events.every((e) => e[4] < values.length && e[5] < values.length)) &&
      results.every(([, at]) => at < values.length) &&
      values.every((v) => v.data === undefined || Boolean(v.kind && v.shown && v.every)),
    'steps whose values exist',
  ),
);

const cells = list(integer(), MOST_CELLS);
const map = all(
  shaped<FootprintMap>({
    array: word,
    kind: oneOf('stores', 'atomics', 'loads'),
    dtype: word,
    shape,
    rows: count,
    columns: count,
    tall: positive,
    wide: positive,
    width: extent,
    wrapped: flag,
    shared: count,
    holes: count,
    moved: list(integer(-1), 2 * MOST_CELLS),
    first: cells,
    last: cells,
    count: cells,
    iteration: cells,
    op: cells,
    marks: cells,
    lines: list(line, 10_000),
  }),
  holds<FootprintMap>(
    (m) =>
      m.moved.length % 2 === 0 &&
      [m.first, m.last, m.count, m.iteration, m.op, m.marks].every((c) => c.length === m.rows * m.columns) &&
      m.op.every((op) => op < m.lines.length),
    'a map with a number for each cell',
  ),
);
const finding = shaped<FootprintFinding>({
  level: oneOf('error', 'warning', 'remark'),
  kind: word,
  text: text(1 << 16),
  hint: text(1 << 16),
  lines: list(line, 100),
});

/** The content of the Footprint view. */
export const footprint: Check = shaped<FootprintFacts>({
  grid,
  scope: text(1 << 16),
  sampled: flag,
  maps: list(map, 1000),
  findings: list(finding, 1000),
  more: count,
});
