/**
 * The checks of a document and of what its packed parts contain (see `schema.ts` for the meaning of each field).
 *
 * A document comes from a notebook, and a notebook may come from a stranger. The views rely on these checks: a field has its type, an
 * index is in range, and a size is one that the page can draw. A rejected document is shown as static HTML.
 */

import {
  all,
  type Check,
  either,
  flag,
  holds,
  integer,
  list,
  nullable,
  number,
  object,
  oneOf,
  record,
  shaped,
  text,
  tuple,
} from './check';
import {
  SCHEMA,
  type Bench,
  type BenchRow,
  type Ceiling,
  type Diff,
  type DiffSide,
  type Document,
  type Knobs,
  type Launch,
  type Listing,
  type Note,
  type Occupancy,
  type OptionKnob,
  type Resources,
  type Roofline,
  type RooflinePoint,
  type Source,
  type Stage,
  type Sweep,
  type SweepSeries,
  type TilesPart,
  type Version,
  type VersionView,
  type View,
} from './schema';
import type { BulkFacts, Operand, ProgramMap, SharedFacts, TileAccess, TileOp, Tiles } from './tiles';
import type { Packed } from './views/timeline';

const word = text(4096);
const words = record(text(1 << 16), /^/, 1000);
/** The hash of a text: `blobs.py` writes 16 hexadecimal digits. */
const hash = all(
  text(64),
  holds<string>((h) => /^[0-9a-f]{8,64}$/.test(h), 'the hash of a text'),
);
const reference = nullable(hash);
const time = number(0);
const count = integer(0);
const ids = list(integer());
const line = integer(-1, 1e7);
const rate = nullable(object({ value: number(), unit: word }));
const choice = either(number(), flag);

const note = shaped<Note>({
  text: text(1 << 16),
  kind: oneOf('info', 'missed', 'warning'),
  op: integer(),
  line: nullable(line),
});

const stage = shaped<Stage>(
  {
    name: word,
    title: word,
    optional: flag,
    skipped: flag,
    changed: flag,
    milliseconds: time,
    ops: count,
    delta: integer(),
    text: reference,
    notes: list(note),
    made: ids,
    moved: ids,
    retyped: ids,
    deleted: ids,
    origin: record(list(integer(), 10_000), /^-?\d{1,15}$/, 1_000_000),
  },
  { edited: flag },
);

const CODE = ['llvm', 'ptx', 'sass', 'assembly'];
const number_or_null = nullable(number());

const occupancy = shaped<Occupancy>({
  blocks_per_sm: number(0),
  warps_per_sm: number(0),
  max_warps: number(0),
  percent: number(0),
  limiter: word,
  advice: list(word, 100),
});

const resources = shaped<Resources>(
  {
    registers: number_or_null,
    spill_bytes: number_or_null,
    stack_bytes: number_or_null,
    shared_bytes: number_or_null,
    threads: number_or_null,
  },
  { occupancy: nullable(occupancy) },
);

const view = shaped<View>(
  { role: oneOf('ran', 'compiled', 'view'), label: word, place: word },
  {
    error: text(1 << 16),
    target: word,
    signature: words,
    constants: words,
    options: words,
    stages: list(stage, 1000),
    code: record(hash, /^(llvm|ptx|sass|assembly)$/),
    later: list(oneOf(...CODE), 10),
    resources,
    warnings: list(text(1 << 16), 1000),
    milliseconds: record(time, /^/, 1000),
    from_cache: flag,
  },
);

const launch = shaped<Launch>({
  target: word,
  device: integer(),
  grid: list(count, 3),
  launches: count,
  milliseconds: list(time),
  median: nullable(time),
  rate,
  signature: words,
  constants: words,
});

const knob = { value: choice, choices: list(choice, 1000) };
const option = shaped<OptionKnob>(knob, { named: flag });
const knobs = shaped<Knobs>({
  constants: list(object({ name: word, ...knob }), 1000),
  num_warps: option,
  num_stages: option,
  passes: list(object({ name: word, on: flag }), 1000),
  runs: flag,
  why: word,
});

const versionView = shaped<VersionView>({
  target: word,
  label: word,
  stages: list(object({ name: word, text: reference }), 1000),
});
const version = shaped<Version>(
  {
    version: word,
    number: integer(),
    note: word,
    first: word,
    first_line: line,
    source: reference,
    constants: words,
    milliseconds: nullable(time),
    measurements: count,
    rate,
    target: nullable(word),
    registers: number_or_null,
    shared_bytes: number_or_null,
    spill_bytes: number_or_null,
    ok: nullable(flag),
  },
  { views: list(versionView, 100) },
);

const side = shaped<DiffSide>(
  { label: word, language: oneOf('ir', 'python'), first_line: line, text: reference },
  { version: word },
);
const diff = shaped<Diff>({ a: side, b: side, by_op: flag });

const benchRow = shaped<BenchRow>(
  { label: word, kind: oneOf('kernel', 'without', 'baseline') },
  { median: time, low: time, high: time, error: text(1 << 16) },
);
const bench = shaped<Bench>({ unit: word, rounds: count, rows: list(benchRow, 1000) });

const positive = number(1e-12, 1e15);
const ceiling = shaped<Ceiling>(
  { name: word, unit: oneOf('GB/s', 'TFLOP/s'), value: positive, how: word },
  { low: number(0), high: number(0) },
);
const point = shaped<RooflinePoint>(
  {
    label: word,
    kind: oneOf('kernel', 'version', 'baseline'),
    flops: nullable(number(0, 1e30)),
    bytes: nullable(number(0, 1e30)),
    milliseconds: positive,
    low: number(0),
    high: number(0),
  },
  { issued_bytes: number(0), version: word, roof: word, percent: number(), about: word },
);
const roofline = shaped<Roofline>(
  { device: word, measured: word, ceilings: list(ceiling, 100), points: list(point, 1000) },
  { note: word },
);

const figures = list(nullable(number(0, 1e30)), 1000);
const sweep = all(
  shaped<Sweep>(
    {
      axis: word,
      values: list(either(number(), word, flag), 1000),
      unit: oneOf('GB/s', 'TFLOP/s', 'ms'),
      series: list(
        shaped<SweepSeries>({
          label: word,
          kind: oneOf('kernel', 'baseline'),
          median: figures,
          low: figures,
          high: figures,
        }),
        100,
      ),
    },
    { cancelled: flag, notes: list(word, 1000) },
  ),
  holds<Sweep>(
    ({ values, series }) =>
      series.every((s) => [s.median, s.low, s.high].every((numbers) => numbers.length === values.length)),
    'a sweep with a number for each value',
  ),
);

/** Characters of one packed text. Those of the largest kernels of the tests have less than 2^20. */
const packed = text(1 << 26);
const part = shaped<TilesPart>({}, { view: integer(-1, 1000), packed, why: text(1 << 16) });

const document = shaped<Document>(
  {
    schema: integer(2, SCHEMA),
    kind: word,
    kernel: word,
    version: word,
    facts: list(tuple(word, text(1 << 16)), 1000),
    source: shaped<Source>({ file: word, first_line: line, text: text(1 << 24), hash: word }),
    launches: list(launch, 10_000),
    views: list(view, 100),
    blobs: record(packed, /^[0-9a-f]{8,64}$/, 100_000),
    left_out: list(object({ what: word, bytes: count, call: word })),
  },
  {
    model: nullable(word),
    knobs,
    show: list(word, 100),
    history: object({ versions: list(version, 10_000) }),
    diff,
    bench,
    roofline,
    sweep,
    tiles: part,
    timeline: part,
  },
);

const known = new WeakMap<object, string>();

/** Returns why the page cannot show a value as a card; "" if it can. */
export function problemOf(doc: unknown): string {
  if (typeof doc !== 'object' || doc === null) {
    return 'the document is not an object';
  }
  let found = known.get(doc);
  if (found === undefined) {
    found = problem(document, doc, 'the document');
    known.set(doc, found);
  }
  return found;
}

/** Tells whether this code can show a document. If not, the page shows the static HTML. */
export function readable(doc: unknown): doc is Document {
  return problemOf(doc) === '';
}

function problem(check: Check, value: unknown, name: string): string {
  try {
    check(value, name);
    return '';
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

// ---- packed parts --------------------------------------------------------------------------------------------------------

/** Lines of one listing. */
const MOST_LINES = 2_000_000;
const lines = list(integer(-1), MOST_LINES);
const rows = object({ text: text(1 << 28), lines }, { ops: lines });

/** A listing. Its text has one line for each number of `lines` and `ops`. */
export const listing: Check = all(
  rows,
  holds<Listing>(
    ({ text, lines, ops }) =>
      text.split('\n').length === lines.length && (ops === undefined || ops.length === lines.length),
    'a listing with a number for each line',
  ),
);

const range = all(
  tuple(integer(0, MOST_LINES), integer(0, MOST_LINES)),
  holds<[number, number]>(([first, end]) => first <= end, 'a range of lines'),
);
const added = object({ text: text(1 << 28), lines, ops: lines });

/** The parts of a listing that is stored as a difference. */
export const delta: Check = list(either(range, all(added, listing)));

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
const programMap = shaped<ProgramMap>({
  op: integer(),
  array: word,
  extent: list(integer(1, 2 ** 31), 16),
  origins: list(nullable(integer()), 4096),
  ...arrayFacts,
});

/** The content of the Tiles view. Every layout exists and has the shape of its op. */
export const tiles: Check = all(
  shaped<Tiles>(
    {
      grid: tuple(extent, extent, extent),
      warps: integer(1, 64),
      arrays: record(object(arrayFacts)),
      ops: list(tileOp, 10_000),
      programs: record(program, /^\d{1,10}$/),
      map: nullable(programMap),
      layouts: list(layout, 10_000),
    },
    { order: integer(1, 2 ** 31) },
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
