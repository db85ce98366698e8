/**
 * The document of a card, as the kernel writes it (blocknb/notebook/document.py).
 *
 * The document stores each text once, under the hash of its content, compressed by gzip and encoded in base64. Some texts are stored
 * as a difference to another one (`inflate.ts`). Optional parts are absent when there is nothing to show, and their view says why.
 * `documents.ts` checks all of it.
 */

import type { Parts } from './parts';
import type { TorchPart } from './torch_part';

export type * from './course_part';
export type * from './memory_part';
export type * from './sweep_part';
export type * from './torch_part';
export type * from './workers_part';

/** The newest schema that this code reads. */
export const SCHEMA = 4;

/** The document's MIME type. */
export const MIME = 'application/vnd.blocknb.v1+json';

/** The kinds of notes, as in the remarks of LLVM. */
export type NoteKind = 'info' | 'missed' | 'warning';

/** A decision of a pass. `op` is -1 and `line` is null if it concerns the whole kernel. */
export interface Note {
  text: string;
  kind: NoteKind;
  op: number;
  line: number | null;
}

/** A pass and the IR after it. `text` is the hash of a blob, or null if the document omits it. */
export interface Stage {
  name: string;
  title: string;
  optional: boolean;
  skipped: boolean;
  changed: boolean;
  milliseconds: number;
  ops: number;
  delta: number;
  text: string | null;
  notes: Note[];
  /** Ids of the ops that the pass created. */
  made: number[];
  /** Ids of the ops that the pass moved. */
  moved: number[];
  /** Ids of the ops whose type the pass changed. */
  retyped: number[];
  /** Ids of the ops that the pass deleted. */
  deleted: number[];
  /** Maps a new op to the ops that it replaces or copies. */
  origin: Record<string, number[]>;
  /** Whether the user replaced the IR after the pass. */
  edited?: boolean;
}

/** Why the kernel refuses the edited text of a stage. Lines count from 1, columns from 0. */
export interface EditProblem {
  message: string;
  hint: string;
  line?: number;
  column?: number;
  end_column?: number;
}

/**
 * A text with the source line of each of its lines (0: none) and, for IR, the id of its op (-1: none). `inner`: the line in a helper in
 * another cell or file that the line was inlined from (0: none), as `helpers.ts` reads it.
 */
export interface Listing {
  text: string;
  lines: number[];
  ops?: number[];
  inner?: number[];
}

/** A helper function outside of the kernel's file. */
export interface HelperSource {
  name: string;
  file: string;
  first_line: number;
  text: string;
}

/** The occupancy of a multiprocessor (SM), its limit, and changes that would raise it. */
export interface Occupancy {
  blocks_per_sm: number;
  warps_per_sm: number;
  max_warps: number;
  percent: number;
  limiter: string;
  advice: string[];
}

/** Resources per thread (registers, spills, stack) and per CTA (shared memory, threads). Unknown values are null. */
export interface Resources {
  registers: number | null;
  spill_bytes: number | null;
  stack_bytes: number | null;
  shared_bytes: number | null;
  threads: number | null;
  occupancy?: Occupancy | null;
}

/** The levels of code below the IR. */
export type CodeKey = 'llvm' | 'ptx' | 'sass' | 'assembly';

/** One target. `role`: the code ran, was compiled only, or was compiled to be viewed. `error`: why the other fields are missing. */
export interface View {
  role: 'ran' | 'compiled' | 'view';
  label: string;
  place: string;
  error?: string;
  target?: string;
  signature?: Record<string, string>;
  constants?: Record<string, string>;
  options?: Record<string, string>;
  stages?: Stage[];
  code?: Partial<Record<CodeKey, string>>;
  /** Levels of code that are not in the document yet. A live kernel generates them on request. */
  later?: CodeKey[];
  resources?: Resources;
  warnings?: string[];
  milliseconds?: Record<string, number>;
  from_cache?: boolean;
}

/** The source of the kernel. Its lines are numbered as in the cell, starting with `first_line`. */
export interface Source {
  file: string;
  first_line: number;
  text: string;
  hash: string;
}

/**
 * A measured time in milliseconds: the median of `n` runs with the quartiles `low` and `high`. `cold`: the caches were flushed before
 * each run, or the one run was the first launch of its code. null: an old document does not say.
 */
export interface Time {
  n: number;
  cold: boolean | null;
  median: number;
  low: number;
  high: number;
  device: string;
}

/** The time of one side divided by that of the other, measured in turns, with a confidence interval (null: too few pairs for one). */
export interface Ratio {
  value: number;
  low: number | null;
  high: number | null;
  pairs: number;
  verdict: 'faster' | 'slower' | 'noise';
}

/** A rate of data or arithmetic, such as 4200 GB/s. */
export interface Rate {
  value: number;
  unit: string;
}

/**
 * The launches of one specialization of a kernel: their time, the time of the first one, and why the launch was not repeated on copies
 * ("" if it was, or not yet).
 */
export interface Launch {
  target: string;
  device: number;
  grid: number[];
  launches: number;
  time: Time | null;
  first: Time | null;
  not_repeated: string;
  rate: Rate | null;
  signature: Record<string, string>;
  constants: Record<string, string>;
}

/** A constant that the user can change: its value and the available choices. */
export interface Knob {
  name: string;
  value: number | boolean;
  choices: (number | boolean)[];
}

/** The knob of a compiler option. If `named` is false, the compiler chose the value. */
export interface OptionKnob extends Omit<Knob, 'name'> {
  named?: boolean;
}

/** All knobs of a kernel. If `runs` is false, a change compiles the kernel without a launch, and `why` gives the reason. */
export interface Knobs {
  constants: Knob[];
  num_warps: OptionKnob;
  num_stages: OptionKnob;
  passes: { name: string; on: boolean }[];
  runs: boolean;
  why: string;
}

/** A measured limit of a device. `low` and `high` are the quartiles; `how` names the benchmark. */
export interface Ceiling {
  name: string;
  unit: 'GB/s' | 'TFLOP/s';
  value: number;
  low?: number;
  high?: number;
  how: string;
}

/** What a point of the roofline stands for. */
export type PointKind = 'kernel' | 'version' | 'baseline';

/** A launch on a roofline. `bytes` counts unique bytes, or is null if it depends on data. `percent` refers to the ceiling `roof`. */
export interface RooflinePoint {
  label: string;
  kind: PointKind;
  flops: number | null;
  bytes: number | null;
  issued_bytes?: number;
  time: Time;
  version?: string;
  roof?: string;
  percent?: number;
  about?: string;
}

/** The roofline of a device: ceilings and measured launches. `age`: seconds from the measurement of the ceilings to the launches. */
export interface Roofline {
  device: string;
  measured: string;
  age?: number | null;
  ceilings: Ceiling[];
  points: RooflinePoint[];
  note?: string;
}

/** The settings that the knobs request. The compiler chooses an option that is null. */
export interface KnobSettings {
  constants: Record<string, number | boolean>;
  num_warps: number | null;
  num_stages: number | null;
  without: string[];
}

/**
 * A change of the knobs after the cell ran, compared with the kernel of the cell in turns. `text` states the verdict; "wrong": the
 * outputs differ from those of the cell’s kernel on the same inputs.
 */
export interface Modified {
  settings: string;
  verdict: 'faster' | 'slower' | 'noise' | 'wrong' | 'unmeasured';
  text: string;
  outputs: string;
  ratio: Ratio | null;
  cell: Time | null;
  now: Time | null;
  notes: string[];
}

/** One measurement of a version (by its number): by a cell, by changed knobs, or by a configuration of an autotuner. */
export interface VersionRun {
  version: number;
  what: string;
  settings: string;
  when: string;
  time: Time | null;
  verdict: string;
}

/** The stages of one target of a version. `text` is null if the document omits it. */
export interface VersionView {
  target: string;
  label: string;
  stages: { name: string; text: string | null }[];
}

/**
 * A source version of a kernel, with its latest measurement. `ok` is the result of a check of the same constants, target and types, or
 * null. `target` is that of the registers, the shared memory and the spills; the time names its own device.
 */
export interface Version {
  version: string;
  number: number;
  note: string;
  first: string;
  first_line: number;
  source: string | null;
  constants: Record<string, string>;
  time: Time | null;
  measurements: number;
  rate: Rate | null;
  target: string | null;
  registers: number | null;
  shared_bytes: number | null;
  spill_bytes: number | null;
  ok: boolean | null;
  /** Absent for the version of this card. */
  views?: VersionView[];
  /** Whether the version ran in an earlier session only. */
  earlier?: boolean;
}

/** One side of a comparison. */
export interface DiffSide {
  label: string;
  /** The version of the kernel. Absent for another kernel. */
  version?: string;
  language: 'ir' | 'python';
  first_line: number;
  text: string | null;
}

/** The two texts of a `%blockdiff`. `by_op`: both are passes of the same compilation. */
export interface Diff {
  a: DiffSide;
  b: DiffSide;
  by_op: boolean;
}

/** One row of a benchmark. `ratio` refers to the first row, and `text` states it. `note`: what a pass changes elsewhere. */
export interface BenchRow {
  label: string;
  kind: 'kernel' | 'without' | 'baseline';
  time?: Time;
  ratio?: Ratio;
  text?: string;
  note?: string;
  error?: string;
}

/** A benchmark in turns. `busy` says why its times may be wrong. */
export interface Bench {
  rounds: number;
  busy?: string;
  rows: BenchRow[];
}

/** The packed tiles of the view with this index (see core/tiles.ts), or the reason why there are none. */
export interface TilesPart {
  view?: number;
  packed?: string;
  why?: string;
}

/** The packed timeline of the view with this index (see views/timeline.ts), or the reason why there is none. */
export type TimelinePart = TilesPart;

/** An entry of the headline: its label, its value, and details. */
export type HeadlineEntry = [string, string, string[]];

/**
 * A part of a composition of widgets: a view of one of the `documents`, a box of parts, or what a widget of another package shows, as text
 * or as a picture in base64.
 * `model`: the id of the part's model in a live kernel. `state`: the values of the view's traits.
 */
export type Composed =
  | { view: string; document: number; model: string; state: Record<string, string | number | null> }
  | { box: 'row' | 'column'; children: Composed[] }
  | { text: string; model?: string }
  | { png: string; model?: string };

/** A widget, as a page without its kernel shows it. `model`: the id of the live widget, which replaces it. */
export interface WidgetPart {
  model: string;
  root: Composed;
  documents: Document[];
}

/** The views that teach, each with its packed content (see core/teaching.ts), and whether the card begins with them. */
export type TeachingKey = 'step' | 'launch' | 'footprint';
export interface Teaching extends Partial<Record<TeachingKey, TilesPart>> {
  learn?: boolean;
}

/** One change in words (blocknb/ir_diff). `before` and `after` are ids of ops on both sides, `lines` the source lines. */
export interface ChangeSentence {
  text: string;
  /** The greater, the more important: 0 to 100. */
  weight: number;
  before: number[];
  after: number[];
  lines: number[];
}

/** The packed sentences by view and pass, or the reason why there are none. */
export type ChangesPart = Omit<TilesPart, 'view'>;

/** One side of a comparison of compilations. */
export interface ComparedSide {
  label: string;
  kernel: string;
  target: string;
  constants: Record<string, string>;
  options: Record<string, string>;
  first_line: number;
  source: string | null;
  levels: { key: string; language: string; text: string | null }[];
  resources: Resources;
  time: Time | null;
}

/** Two or more compilations; `packed` has the comparison of the first side with each other one (see views/compare.ts). */
export interface Compared {
  sides: ComparedSide[];
  packed: string;
}

/** The document of a card. */
export interface Document extends Parts {
  schema: number;
  kind: string;
  kernel: string;
  version: string;
  /** The id under which a live kernel answers for this card. */
  model?: string | null;
  facts: [string, string][];
  /** What the header shows unfolded: the time, the check and the device. Absent in old documents. */
  headline?: HeadlineEntry[];
  source: Source;
  launches: Launch[];
  views: View[];
  blobs: Record<string, string>;
  left_out: { what: string; bytes: number; call: string }[];
  /** The helpers in other cells or files that lines come from, by key (see core/helpers.ts). */
  helpers?: Record<string, HelperSource>;
  /** For each line of the kernel with calls of such helpers: the lines that are inlined there. */
  inlined?: Record<string, number[]>;
  knobs?: Knobs;
  /** Keys of the view, stage or level of code to open first. */
  show?: string[];
  history?: { versions: Version[]; runs?: VersionRun[] };
  diff?: Diff;
  bench?: Bench;
  roofline?: Roofline;
  tiles?: TilesPart;
  timeline?: TimelinePart;
  teaching?: Teaching;
  changes?: ChangesPart;
  compare?: Compared;
  /** What the knobs were changed to after the cell ran. */
  modified?: Modified;
  /** Whether a live kernel has slow parts of the document, and the repetitions of the launch, on request. */
  deferred?: boolean;
  /** A widget, or a box of widgets. All other parts are empty then. */
  widget?: WidgetPart;
  /** The kernels of a compiled model. The parts of one kernel are empty then. */
  torch?: TorchPart;
}
