/**
 * The checks of a document (see `schema.ts` for the meaning of each field; `packed_parts.ts` checks the packed parts).
 *
 * A document comes from a notebook, and a notebook may come from a stranger. The views rely on these checks: a field has its type, an
 * index is in range, and a size is one that the page can draw. A rejected document is shown as static HTML.
 */

import {
  all,
  type Check,
  count,
  either,
  flag,
  holds,
  Invalid,
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
  words,
} from './check';
import { helperSources } from './helpers';
import {
  SCHEMA,
  type Bench,
  type BenchRow,
  type Ceiling,
  type Composed,
  type ChangesPart,
  type Compared,
  type ComparedSide,
  type Diff,
  type DiffSide,
  type Document,
  type Knobs,
  type Launch,
  type Note,
  type Occupancy,
  type OptionKnob,
  type Resources,
  type Roofline,
  type RooflinePoint,
  type Source,
  type Stage,
  type Ratio,
  type Teaching,
  type TilesPart,
  type Time,
  type Modified,
  type Version,
  type VersionRun,
  type VersionView,
  type View,
  type WidgetPart,
} from './schema';
import { PARTS } from './parts';
import { torchPart } from './torch_part';
import { upgrade } from './upgrade';

/** The hash of a text: `blobs.py` writes 16 hexadecimal digits. */
const hash = all(
  text(64),
  holds<string>((h) => /^[0-9a-f]{8,64}$/.test(h), 'the hash of a text'),
);
const reference = nullable(hash);
const milliseconds = number(0);
const time = shaped<Time>({
  n: count,
  cold: nullable(flag),
  median: milliseconds,
  low: milliseconds,
  high: milliseconds,
  device: word,
});
const verdicts = ['faster', 'slower', 'noise'];
const ratio = shaped<Ratio>({
  value: number(0),
  low: nullable(number(0)),
  high: nullable(number(0)),
  pairs: count,
  verdict: oneOf(...verdicts),
});
const ids = list(integer());
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
    milliseconds,
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
    milliseconds: record(milliseconds, /^/, 1000),
    from_cache: flag,
  },
);

const launch = shaped<Launch>({
  target: word,
  device: integer(),
  grid: list(count, 3),
  launches: count,
  time: nullable(time),
  first: nullable(time),
  not_repeated: text(1 << 16),
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
    time: nullable(time),
    measurements: count,
    rate,
    target: nullable(word),
    registers: number_or_null,
    shared_bytes: number_or_null,
    spill_bytes: number_or_null,
    ok: nullable(flag),
  },
  { views: list(versionView, 100), earlier: flag },
);
const versionRun = shaped<VersionRun>({
  version: integer(),
  what: word,
  settings: word,
  when: word,
  time: nullable(time),
  verdict: word,
});
const history = object({ versions: list(version, 10_000) }, { runs: list(versionRun, 10_000) });

const side = shaped<DiffSide>(
  { label: word, language: oneOf('ir', 'python'), first_line: line, text: reference },
  { version: word },
);
const diff = shaped<Diff>({ a: side, b: side, by_op: flag });

const benchRow = shaped<BenchRow>(
  { label: word, kind: oneOf('kernel', 'without', 'baseline') },
  { time, ratio, text: text(1 << 16), note: text(1 << 16), error: text(1 << 16) },
);
const bench = shaped<Bench>({ rounds: count, rows: list(benchRow, 1000) }, { busy: text(1 << 16) });

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
    time: all(
      time,
      holds<Time>(({ median }) => median > 0, 'a time above 0'),
    ),
  },
  { issued_bytes: number(0), version: word, roof: word, percent: number(), about: word },
);
const roofline = shaped<Roofline>(
  { device: word, measured: word, ceilings: list(ceiling, 100), points: list(point, 1000) },
  { note: word, age: nullable(number()) },
);

const modified = shaped<Modified>({
  settings: word,
  verdict: oneOf(...verdicts, 'wrong', 'unmeasured'),
  text: text(1 << 16),
  outputs: text(1 << 16),
  ratio: nullable(ratio),
  cell: nullable(time),
  now: nullable(time),
  notes: list(text(1 << 16), 1000),
});

/** Characters of one packed text. Those of the largest kernels of the tests have less than 2^20. */
const packed = text(1 << 26);
const part = shaped<TilesPart>({}, { view: integer(-1, 1000), packed, why: text(1 << 16) });
const teaching = shaped<Teaching>({}, { learn: flag, step: part, launch: part, footprint: part });

/** The deepest box of a composition. */
const DEEPEST = 20;
const state = record(nullable(either(number(), word)), /^[a-z_]{1,40}$/, 40);

const base64 = holds<string>((value) => /^[A-Za-z0-9+/\n]*=*\s*$/.test(value), 'a picture in base64');

/** A part of a composition, at most `depth` boxes deep. */
function composed(depth: number): Check {
  return (value, path) => {
    const found = (value ?? {}) as Record<string, unknown>;
    if (found.view !== undefined) {
      object({ view: word, document: integer(0, 100), model: word, state })(value, path);
    } else if (found.box !== undefined && depth > 0) {
      object({ box: oneOf('row', 'column'), children: list(composed(depth - 1), 1000) })(value, path);
    } else if (found.png !== undefined) {
      object({ png: all(packed, base64) }, { model: word })(value, path);
    } else {
      object({ text: text(1 << 16) }, { model: word })(value, path);
    }
  };
}

/** The documents of a composition hold no compositions. */
const inner: Check = (value, path) => {
  if (typeof value === 'object' && value !== null && ('widget' in value || 'torch' in value)) {
    throw new Invalid(`${path} is a composition inside of another one`);
  }
  anyDocument(value, path);
};

const widget = all(
  shaped<WidgetPart>({ model: word, root: composed(DEEPEST), documents: list(inner, 100) }),
  holds<WidgetPart>(
    ({ root, documents }) => within(root, documents.length),
    'a composition of its documents',
  ),
);

/** Tells whether each view refers to one of `count` documents. */
function within(part: Composed, count: number): boolean {
  return 'view' in part
    ? part.document < count
    : !('box' in part) || part.children.every((one) => within(one, count));
}

const changesPart = shaped<ChangesPart>({}, { packed, why: text(1 << 16) });

const languages = oneOf('ir', 'llvm', 'ptx', 'sass', 'asm');
const comparedSide = shaped<ComparedSide>({
  label: word,
  kernel: word,
  target: word,
  constants: words,
  options: words,
  first_line: line,
  source: reference,
  levels: list(object({ key: word, language: languages, text: reference }), 1000),
  resources,
  time: nullable(time),
});
const compared = shaped<Compared>({ sides: list(comparedSide, 100, 2), packed });

const document = shaped<Document>(
  {
    schema: integer(SCHEMA, SCHEMA),
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
    helpers: helperSources,
    inlined: record(list(integer(0), 10_000), /^\d{1,7}$/),
    headline: list(tuple(word, text(1 << 16), list(text(1 << 16), 100)), 100),
    ...PARTS,
    knobs,
    show: list(word, 100),
    history,
    diff,
    bench,
    roofline,
    tiles: part,
    timeline: part,
    teaching,
    changes: changesPart,
    compare: compared,
    modified,
    deferred: flag,
    widget,
    torch: torchPart(time, inner),
  },
);

/** A document of any schema that this code reads. */
const anyDocument: Check = (value, name) => {
  object({ schema: integer(2, SCHEMA) })(value, name);
  document(upgrade(value as Document), name);
};

const known = new WeakMap<object, string>();

/** Returns why the page cannot show a value as a card; "" if it can. */
export function problemOf(doc: unknown): string {
  if (typeof doc !== 'object' || doc === null) {
    return 'the document is not an object';
  }
  let found = known.get(doc);
  if (found === undefined) {
    found = problem(anyDocument, doc, 'the document');
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
