/** The part of a document on the kernels of a model that `torch.compile` compiled (blocknb/notebook/torch_page.py), and its check. */

import {
  all,
  type Check,
  count,
  flag,
  holds,
  integer,
  list,
  nullable,
  number,
  oneOf,
  record,
  shaped,
  text,
  tuple,
  word,
} from './check';
import type { Document, Time } from './schema';

/** A line of the user's program: "In[3]:7", the file and the text. */
export type ProgramLine = [string, string, string];

/** A generated kernel. `groups` are the graphs and groups that launched it. A `why` says why a number is null. */
export interface TorchRow {
  name: string;
  configuration: string;
  grid: string;
  launches: number;
  lines: ProgramLine[];
  operators: string[];
  time: Time | null;
  share: number | null;
  bytes: number | null;
  flops: number | null;
  exact: boolean;
  roof: string | null;
  percent: number | null;
  why_time: string;
  why_bytes: string;
  why_flops: string;
  groups: [number, number][];
}

/** The box of a kernel or of an external call. `row` is -1 if nothing launched it in this run. The box is x, y, width and height. */
export interface TorchGroup {
  kind: 'kernel' | 'external';
  call: string;
  label: string;
  row: number;
  box: [number, number, number, number];
}

/**
 * A placed graph. An operator has its name, the operator that it was made of, its result, its inputs and its line. A node is an operator in
 * a box: box, operator, label, x, y and width. An edge joins two nodes by a path. `unfused`: two boxes, why they are not one, and the line.
 */
export interface TorchGraph {
  name: string;
  width: number;
  height: number;
  operators: [string, string, string, string[], ProgramLine | null][];
  nodes: [number, number, string, number, number, number][];
  groups: TorchGroup[];
  edges: [number, number, string][];
  unfused: [number, number, string, ProgramLine | null][];
}

/** Why a graph ended before its function did. */
export interface TorchBreak {
  reason: string;
  line: ProgramLine | null;
  graph: number;
}

/** One run of a cell: the sum of the kernels' times, and counts. `change` says how the cell's text differs from that of the run before. */
export interface TorchRun {
  when: string;
  change: string;
  time: Time | null;
  kernels: number;
  launches: number;
  bytes: number | null;
}

/** The kernels of a compiled model. `cards` has the documents of some rows. */
export interface TorchPart {
  title: string;
  rows: TorchRow[];
  more_rows: number;
  graphs: TorchGraph[];
  breaks: TorchBreak[];
  trend: TorchRun[];
  cards?: Record<string, Document>;
}

const long = text(1 << 16);
const programLine = tuple(word, word, word);
const size = number(0, 1e6);
const amount = nullable(number(0, 1e30));
/** The commands of a path that fusion_layout.py writes: absolute moves, vertical lines and curves. */
const path = all(
  text(1 << 14),
  holds<string>((d) => /^[MVC0-9 .-]*$/.test(d), 'a path'),
);

/** The check of the part. `time` and `inner` are the checks of a time and of a document. */
export function torchPart(time: Check, inner: Check): Check {
  const row = shaped<TorchRow>({
    name: word,
    configuration: word,
    grid: word,
    launches: count,
    lines: list(programLine, 1000),
    operators: list(word, 1000),
    time: nullable(time),
    share: nullable(number(0, 1)),
    bytes: amount,
    flops: amount,
    exact: flag,
    roof: nullable(word),
    percent: nullable(number()),
    why_time: long,
    why_bytes: long,
    why_flops: long,
    groups: list(tuple(integer(0, 1000), integer(0, 100_000)), 1000),
  });
  const group = shaped<TorchGroup>({
    kind: oneOf('kernel', 'external'),
    call: word,
    label: word,
    row: integer(-1, 1000),
    box: tuple(size, size, size, size),
  });
  const index = integer(0, 100_000);
  const graph = all(
    shaped<TorchGraph>({
      name: word,
      width: size,
      height: size,
      operators: list(tuple(word, word, word, list(word, 100), nullable(programLine)), 20_000),
      nodes: list(tuple(index, index, word, size, size, size), 20_000),
      groups: list(group, 10_000),
      edges: list(tuple(index, index, path), 50_000),
      unfused: list(tuple(index, index, long, nullable(programLine)), 1000),
    }),
    holds<TorchGraph>(
      ({ operators, nodes, groups, edges, unfused }) =>
        nodes.every(([box, operator]) => box < groups.length && operator < operators.length) &&
        edges.every(([a, b]) => a < nodes.length && b < nodes.length) &&
        unfused.every(([a, b]) => a < groups.length && b < groups.length),
      'a graph of its own nodes and boxes',
    ),
  );
  const graphBreak = shaped<TorchBreak>({ reason: long, line: nullable(programLine), graph: count });
  const run = shaped<TorchRun>({
    when: word,
    change: word,
    time: nullable(time),
    kernels: count,
    launches: count,
    bytes: amount,
  });
  return all(
    shaped<TorchPart>(
      {
        title: word,
        rows: list(row, 1000),
        more_rows: count,
        graphs: list(graph, 1000),
        breaks: list(graphBreak, 1000),
        trend: list(run, 1000),
      },
      { cards: record(inner, /^\d{1,4}$/, 1000) },
    ),
    holds<TorchPart>(
      ({ rows, graphs }) => graphs.every(({ groups }) => groups.every((one) => one.row < rows.length)),
      'a table with all rows that its graphs name',
    ),
  );
}
