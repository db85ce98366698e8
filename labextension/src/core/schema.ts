/**
 * The document a card is made from, as the kernel writes it (blocknb/notebook/document.py), and how its blobs are read.
 *
 * Texts are stored once under the hash of their content, gzipped and in base64, some as the difference to another; everything else
 * refers to that hash. Optional parts are absent when there is nothing to show, and their view then says why.
 */

/** The newest schema this code reads. */
export const SCHEMA = 3;

/** The document's MIME type. */
export const MIME = 'application/vnd.blocknb.v1+json';

export type NoteKind = 'info' | 'missed' | 'warning';

/** One decision of a pass. `op` is -1 and `line` null where it concerns the whole kernel. */
export interface Note {
  text: string;
  kind: NoteKind;
  op: number;
  line: number | null;
}

/** One pass. `text` is a blob's hash, null when it was left out; `made`... say what it did to each op, by id. */
export interface Stage {
  name: string;
  title: string;
  doc: string;
  optional: boolean;
  skipped: boolean;
  changed: boolean;
  milliseconds: number;
  ops: number;
  delta: number;
  text: string | null;
  notes: Note[];
  made: number[];
  moved: number[];
  retyped: number[];
  /** Ops of the stage before that are gone. */
  deleted: number[];
  /** New op -> the ops it replaces or copies. */
  origin: Record<string, number[]>;
}

/** A text with, for each of its lines, the source line it came from (0: none) and, for IR, the id of its op (-1: none). */
export interface Listing {
  text: string;
  lines: number[];
  ops?: number[];
}

export interface Occupancy {
  blocks_per_sm: number;
  warps_per_sm: number;
  max_warps: number;
  percent: number;
  limiter: string;
  advice: string[];
}

/** Per thread (registers, spills, stack) and per program (shared memory, threads); null where nobody knows. */
export interface Resources {
  registers: number | null;
  spill_bytes: number | null;
  stack_bytes: number | null;
  shared_bytes: number | null;
  threads: number | null;
  occupancy?: Occupancy | null;
}

export type CodeKey = 'llvm' | 'ptx' | 'sass' | 'assembly';

/** One target. `role` says whether it ran, was only compiled, or was compiled to be read; `error` why there is nothing else. */
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
  /** Levels of code that a live kernel makes when it is asked for the whole document. */
  later?: CodeKey[];
  resources?: Resources;
  warnings?: string[];
  milliseconds?: Record<string, number>;
  from_cache?: boolean;
}

/** The kernel's own text; its lines are numbered as in the cell, from `first_line`. */
export interface Source {
  file: string;
  first_line: number;
  text: string;
  hash: string;
}

export interface Rate {
  value: number;
  unit: string;
}

export interface Launch {
  target: string;
  device: number;
  grid: number[];
  launches: number;
  milliseconds: number[];
  median: number | null;
  rate: Rate | null;
  signature: Record<string, string>;
  constants: Record<string, string>;
}

/** A constant that can be turned: its value and those to choose from. */
export interface Knob {
  name: string;
  value: number | boolean;
  choices: (number | boolean)[];
}

/** A number that somebody named, or (`named` false) that the compiler chose. */
export interface Asked extends Omit<Knob, 'name'> {
  named?: boolean;
}

/** What can be turned; `runs` false: a turn compiles and does not launch, and `why` says why. */
export interface Knobs {
  constants: Knob[];
  num_warps: Asked;
  num_stages: Asked;
  passes: { name: string; on: boolean }[];
  runs: boolean;
  why: string;
}

/** One limit of a device, as measured; `low` and `high` are the quarter points, `how` says by what. */
export interface Ceiling {
  name: string;
  unit: 'GB/s' | 'TFLOP/s';
  value: number;
  low?: number;
  high?: number;
  how: string;
}

export type PointKind = 'kernel' | 'version' | 'baseline';

/** A launch on a roofline. `bytes` are unique; null where the data decide. `percent` is of the ceiling named by `roof`. */
export interface RooflinePoint {
  label: string;
  kind: PointKind;
  flops: number | null;
  bytes: number | null;
  issued_bytes?: number;
  milliseconds: number;
  low: number;
  high: number;
  version?: string;
  roof?: string;
  percent?: number;
  about?: string;
}

export interface Roofline {
  device: string;
  measured: string;
  ceilings: Ceiling[];
  points: RooflinePoint[];
  note?: string;
}

/** One line of a sweep: a number for each value, null where none was measured. */
export interface SweepSeries {
  label: string;
  kind: 'kernel' | 'baseline';
  median: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
}

export interface Sweep {
  axis: string;
  values: (number | string | boolean)[];
  unit: 'GB/s' | 'TFLOP/s' | 'ms';
  series: SweepSeries[];
  cancelled?: boolean;
  notes?: string[];
}

/** What a turn asks for; null: as the compiler chooses. */
export interface Turn {
  constants: Record<string, number | boolean>;
  num_warps: number | null;
  num_stages: number | null;
  without: string[];
}

/** The stages of one target of a version; `text` is null where the document had no room. */
export interface VersionView {
  target: string;
  label: string;
  stages: { name: string; text: string | null }[];
}

/** One source text of a kernel, with the numbers of its newest measurement. `ok`: what the last check said, null without one. */
export interface Version {
  version: string;
  number: number;
  note: string;
  first: string;
  first_line: number;
  source: string | null;
  constants: Record<string, string>;
  milliseconds: number | null;
  measurements: number;
  rate: Rate | null;
  target: string | null;
  registers: number | null;
  shared_bytes: number | null;
  spill_bytes: number | null;
  ok: boolean | null;
  /** Absent for the version that the card itself shows. */
  views?: VersionView[];
}

export interface DiffSide {
  label: string;
  /** Of the kernel's source; none where it is that of another kernel. */
  version?: string;
  language: 'ir' | 'python';
  first_line: number;
  text: string | null;
}

/** Two texts to begin with: what `%blockdiff` was asked for. `by_op`: two passes of one compilation. */
export interface Diff {
  a: DiffSide;
  b: DiffSide;
  by_op: boolean;
}

export interface BenchRow {
  label: string;
  kind: 'kernel' | 'without' | 'baseline';
  median?: number;
  low?: number;
  high?: number;
  error?: string;
}

/** Things timed in turns: medians and quartiles. */
export interface Bench {
  unit: string;
  rounds: number;
  rows: BenchRow[];
}

/** The tiles of the view with that index, packed (core/tiles.ts has what is in there); or why there are none. */
export interface TilesPart {
  view?: number;
  packed?: string;
  why?: string;
}

/** What is under way when on the view with that index, packed (views/timeline.ts has what is in there); or why there is nothing. */
export type TimelinePart = TilesPart;

/** A whole card. */
export interface Document {
  schema: number;
  kind: string;
  kernel: string;
  version: string;
  /** The id of the comm that answers for this card while its kernel lives. */
  model?: string | null;
  facts: [string, string][];
  source: Source;
  launches: Launch[];
  views: View[];
  blobs: Record<string, string>;
  left_out: { what: string; bytes: number; call: string }[];
  knobs?: Knobs;
  /** Keys of what to open first: a view, a stage or a level of code. */
  show?: string[];
  history?: { versions: Version[] };
  diff?: Diff;
  bench?: Bench;
  roofline?: Roofline;
  sweep?: Sweep;
  tiles?: TilesPart;
  timeline?: TimelinePart;
}

/** Whether this code can show a document; otherwise the static view must do. */
export function readable(doc: unknown): doc is Document {
  const found = doc as Partial<Document> | null;
  return (
    typeof found === 'object' &&
    found !== null &&
    typeof found.schema === 'number' &&
    found.schema <= SCHEMA &&
    found.schema >= 2 &&
    Array.isArray(found.views)
  );
}

/** JSON that was gzipped and put in base64. Rejects when it is not that. */
export async function inflate(packed: string): Promise<unknown> {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Response(bytes).body!.pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

/** Lines of a listing's base, from the first up to the other, or lines of its own: see blocknb/notebook/blobs.py. */
type Part = [number, number] | Required<Listing>;

/** A blob's content; `base` reads that of another blob, which this one may be the difference to. Rejects when it is not what is packed. */
export async function unpack(
  packed: string,
  base: (hash: string) => Promise<Listing | null>,
): Promise<Listing> {
  const [content, hash] = packed.split(' ');
  const found = await inflate(content);
  return hash ? joined(found as Part[], await base(hash)) : (found as Listing);
}

function joined(parts: Part[], base: Listing | null): Listing {
  if (!base?.ops) {
    throw new Error('The listing that this one is the difference to is missing.');
  }
  const { text, lines, ops } = base;
  const texts = text.split('\n');
  const rows = parts.map((part) =>
    Array.isArray(part)
      ? { text: texts.slice(...part).join('\n'), lines: lines.slice(...part), ops: ops.slice(...part) }
      : part,
  );
  return {
    text: rows.map((row) => row.text).join('\n'),
    lines: rows.flatMap((row) => row.lines),
    ops: rows.flatMap((row) => row.ops),
  };
}
