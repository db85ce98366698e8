/**
 * The checks of what the packed parts of a document contain: listings, tiles and timelines (`documents.ts` checks the document itself).
 */

import {
  all,
  type Check,
  count,
  either,
  flag,
  holds,
  integer,
  line,
  list,
  nullable,
  number,
  object,
  oneOf,
  record,
  shaped,
  text,
  tuple,
  word,
} from './check';
import type { Listing } from './schema';
import type { BulkFacts, Operand, ProgramMap, SharedFacts, TileAccess, TileOp, Tiles } from './tiles';
import type { Packed } from './views/timeline';

/** Lines of one listing. */
const MOST_LINES = 2_000_000;
const lines = list(integer(-1), MOST_LINES);
const rows = object({ text: text(1 << 28), lines }, { ops: lines, inner: lines });

/** A listing. Its text has one line for each number of `lines` and `ops`. */
const plainListing: Check = all(
  rows,
  holds<Listing>(
    ({ text, lines, ops, inner }) =>
      text.split('\n').length === lines.length &&
      [ops, inner].every((column) => column === undefined || column.length === lines.length),
    'a listing with a number for each line',
  ),
);

/**
 * A listing as its distinct lines, with a mark for each number (see blocknb/notebook/blobs.py). `rows`: the template of each line.
 * `numbers`: differences to the numbers of the last line with the same template. `lines`, `ops` and `inner` are differences to the line before.
 */
export interface Templates {
  templates: string[];
  rows: number[];
  numbers: number[];
  lines: number[];
  ops?: number[];
  inner?: number[];
}

const integers = list(integer(), MOST_LINES);
const templates: Check = all(
  shaped<Templates>(
    {
      templates: list(text(1 << 24), MOST_LINES),
      rows: list(integer(0, MOST_LINES), MOST_LINES),
      numbers: list(integer(), 1 << 26),
      lines: integers,
    },
    { ops: integers, inner: integers },
  ),
  holds<Templates>(
    ({ templates, rows, lines, ops, inner }) =>
      rows.every((row) => row < templates.length) &&
      rows.length === lines.length &&
      [ops, inner].every((column) => column === undefined || column.length === lines.length),
    'templates with a number for each line',
  ),
);

/** A listing, in either form. */
export const listing: Check = (value, path) =>
  (typeof value === 'object' && value !== null && 'templates' in value ? templates : plainListing)(
    value,
    path,
  );

const range = all(
  tuple(integer(0, MOST_LINES), integer(0, MOST_LINES)),
  holds<[number, number]>(([first, end]) => first <= end, 'a range of lines'),
);
const added = object({ text: text(1 << 28), lines, ops: lines }, { inner: lines });

/** The parts of a listing that is stored as a difference. */
export const delta: Check = list(either(range, all(added, plainListing)));

const extent = integer(0, 2 ** 31);
const bits = (most: number): Check => list(integer(0, 2 ** 20), most);
const fits = holds<number[]>(
  (shape) => shape.reduce((a, b) => a * b, 1) <= 2 ** 20,
  'the shape of a tile of at most 2^20 elements',
);
const shape = all(list(integer(1, 2 ** 20), 8), fits);
/** The index that all bits together give must be inside the tile. */
const layout = all(
  tuple(shape, bits(20), bits(5), bits(5)),
  holds<[number[], ...number[][]]>(([of, ...bases]) => {
    const size = of.reduce((a, b) => a * b, 1);
    const copies = bases.flat().length;
    return bases.flat().every((basis) => basis < size) && (size & (size - 1)) === 0 && copies <= 24;
  }, 'a layout of its tile'),
);
const arrayFacts = { shape: list(extent, 16), strides: list(integer(), 16) };
const operand = shaped<Operand>(
  { shape, dtype: word },
  { layout: integer(-1), wavefronts: count, ideal: count },
);
const sharedFacts = shaped<SharedFacts>({
  basis: bits(32),
  how: word,
  instructions: count,
  wavefronts: count,
  ideal: number(0),
  ways: number(0),
});
const bulkFacts = shaped<BulkFacts>({ tile: shape, swizzle: oneOf(0, 32, 64, 128), basis: bits(32) });
const tileOp = shaped<TileOp>(
  {
    op: integer(),
    line,
    name: word,
    what: word,
    dtype: word,
    bytes: number(0, 64),
    shape,
    layout: integer(-1),
    vector: number(0, 1 << 20),
  },
  {
    kind: word,
    limits: list(text(1000), 16),
    shared: sharedFacts,
    bulk: bulkFacts,
    dot: object({ instr: word, operands: tuple(operand, operand) }),
  },
);
const offsets = list(integer(), 2 ** 20);
const access = shaped<TileAccess>(
  {},
  {
    array: word,
    base: integer(),
    steps: list(integer(), 8),
    tables: list(offsets, 8),
    list: offsets,
    omitted: flag,
    box: list(tuple(integer(), integer()), 8),
    bits: text(1 << 18),
    iterations: nullable(integer(0)),
    guessed: flag,
    traffic: tuple(count, count, number(0), count, count, count, count),
    why: text(1 << 16),
  },
);
/** The accesses of one program, by the number of the op. */
export const program: Check = record(access, /^\d{1,6}$/);
const programMap = shaped<ProgramMap>(
  {
    op: integer(),
    array: word,
    extent: list(integer(1, 2 ** 31), 16),
    origins: list(nullable(integer()), 4096),
    ...arrayFacts,
  },
  { start: integer(0, 127) },
);

/** The content of the Tiles view. Every layout exists and has the shape of its op. */
export const tiles: Check = all(
  shaped<Tiles>(
    {
      grid: tuple(extent, extent, extent),
      warps: integer(1, 64),
      arrays: record(object(arrayFacts, { start: integer(0, 127) })),
      ops: list(tileOp, 10_000),
      programs: record(program, /^\d{1,10}$/),
      map: nullable(programMap),
      layouts: list(layout, 10_000),
    },
    { order: integer(1, 2 ** 31), addresses: flag },
  ),
  holds<Tiles>(({ ops, layouts, map }) => {
    const same = (a: number[], b: number[]): boolean =>
      a.length === b.length && a.every((x, i) => x === b[i]);
    const exists = (index: number | undefined): boolean => (index ?? -1) < layouts.length;
    return (
      ops.every(
        (op) =>
          exists(op.layout) &&
          (op.layout < 0 || same(layouts[op.layout][0], op.shape)) &&
          (!op.bulk || op.bulk.tile.length === op.shape.length) &&
          (!op.dot || op.dot.operands.every((one) => exists(one.layout))),
      ) &&
      (!map || map.shape.length === map.extent.length)
    );
  }, 'tiles whose layouts and maps fit'),
);

const SPANS = 20_000;
const cycle = number(0, 1e12);

/** The content of the Timeline view. Every span lies on a lane and has a word. */
export const timeline: Check = all(
  shaped<Packed>({
    lanes: list(word, 200),
    words: list(word, SPANS),
    spans: list(
      tuple(
        count,
        integer(0, 4),
        cycle,
        cycle,
        cycle,
        count,
        line,
        integer(),
        integer(-1, 1e6),
        integer(-1),
        number(0),
      ),
      SPANS,
    ),
    busy: number(0, 1e6),
    cut: flag,
    about: word,
  }),
  holds<Packed>(
    ({ lanes, words, spans }) => spans.every((span) => span[0] < lanes.length && span[5] < words.length),
    'a timeline whose spans fit',
  ),
);
