/**
 * The data of the views that teach, as blocknb/notebook/teaching/ writes them, and how a view gets them: from the document, or from the
 * kernel of a live card. What the kernel answers is saved in the document, within its budget.
 */

import type { Check } from './check';
import { Budget, inflate } from './inflate';
import type { HelperSource, TeachingKey, TilesPart } from './schema';
import type { Store } from './store';
import * as checks from './teaching_checks';

/** An array of a launch as a picture of rows and columns. `wrapped`: it has one axis. */
export interface LaunchArray {
  name: string;
  dtype: string;
  bytes: number;
  shape: number[];
  rows: number;
  columns: number;
  wrapped: boolean;
}

/** The kind of an access. */
export type AccessKind = 'load' | 'store' | 'atomic';

/**
 * A step of a program: [place in launch order, number of the program], iteration, [loaded, first loaded, stored] bytes, and its accesses
 * as [index of `ops`, index of `rects`].
 */
export type LaunchStep = [[number, number], number, [number, number, number], [number, number][]];

/** The steps of a launch, from the program `first` of the launch order on. A list of rectangles is flat: top, bottom, left, right. */
export interface LaunchFacts {
  grid: number[];
  programs: number;
  first: number;
  /** Whether the GPU launches the programs in another order than that of the grid. */
  ordered: boolean;
  arrays: LaunchArray[];
  /** Array, kind and line. */
  ops: [number, AccessKind, number][];
  /** The lines of the loops around each op, outermost first. Absent in older cards. */
  loops?: number[][];
  rects: number[][];
  steps: LaunchStep[];
  /** Bytes of the earlier programs. */
  before: number[];
  /** Bytes of the whole launch, as the footprint counts them. */
  totals: number[];
  machine: { chip: string; multiprocessors: number; each: number } | null;
  /** Whether there are more steps than these. */
  cut: boolean;
  scope: string;
}

/** A value of a program. A tile has its elements, `every` row and column of it, as base64. */
export interface StepValue {
  dtype: string;
  shape: number[];
  text?: string;
  kind?: 'u1' | 'i4' | 'f4' | 'f8';
  shown?: [number, number];
  every?: [number, number];
  data?: string;
  low?: number;
  high?: number;
  /** Elements that are not finite. */
  odd?: number;
  /** Elements of a mask that are true. */
  on?: number;
}

/** Line (that of a helper as in `helpers.ts`), what happened, name, text, and the indices of the value and of the mask (-1: none). */
export type StepEvent = [number, 'set' | AccessKind, string, string, number, number];

/**
 * One recorded program. `cut` says why it ends early, `error` why it failed. `calls` has, for each event, the lines of the calls that lead
 * to its helper, outermost first; it is absent if the kernel calls no helper.
 */
export interface StepRun {
  program: number;
  events: StepEvent[];
  calls?: number[][];
  cut: string;
  error: string;
}

/**
 * The values of one or two programs. `results` are the arrays that the kernel stores to, by name and index of the value. `helpers` are the
 * functions whose lines the events have, by key.
 */
export interface StepFacts {
  grid: number[];
  runs: StepRun[];
  values: StepValue[];
  results: [string, number][];
  note: string;
  helpers?: Record<string, HelperSource>;
}

/** The accesses of one kind to one array, a number per cell; a cell has `tall` × `wide` elements. */
export interface FootprintMap {
  array: string;
  kind: 'stores' | 'atomics' | 'loads';
  dtype: string;
  shape: number[];
  rows: number;
  columns: number;
  tall: number;
  wide: number;
  /** Elements of a row of the picture. */
  width: number;
  wrapped: boolean;
  /** Elements that several programs access. */
  shared: number;
  /** Elements that no program accesses. */
  holes: number;
  /** Cells that do not show the element in their corner, flat: the cell, then its element (-1: none). */
  moved: number[];
  first: number[];
  last: number[];
  count: number[];
  iteration: number[];
  op: number[];
  /** 1: an element of several programs, 2: an element of none. */
  marks: number[];
  lines: number[];
}

/** A sentence about a launch. */
export interface FootprintFinding {
  level: 'error' | 'warning' | 'remark';
  kind: string;
  text: string;
  hint: string;
  lines: number[];
}

/** The footprint of a launch. */
export interface FootprintFacts {
  grid: number[];
  scope: string;
  sampled: boolean;
  maps: FootprintMap[];
  findings: FootprintFinding[];
  more: number;
}

const CHECKS: Record<TeachingKey, Check> = {
  launch: checks.launch,
  step: checks.step,
  footprint: checks.footprint,
};

/** The option of the cell that saves a view. */
const OPTIONS: Record<TeachingKey, string> = {
  launch: '--launch-view',
  step: '--step',
  footprint: '--footprint',
};

/** Returns why a card cannot have a view that teaches, or null. A live kernel can compute it. */
export function emptyReason(store: Store, view: TeachingKey): string | null {
  const { doc, host } = store;
  if (doc.teaching?.[view]?.packed || host.request || doc.model) {
    return null;
  }
  return doc.teaching?.[view]?.why ?? missing(view);
}

function missing(view: TeachingKey): string {
  return `The saved card does not contain this view. Run the cell again, with %%blockkernel ${OPTIONS[view]} to save it.`;
}

/** What a view shows, or why it shows nothing. */
export interface Loaded<T> {
  facts: T | null;
  why: string;
}

/**
 * Loads the content of a view: that of the document if nothing else is asked for, otherwise the answer of the kernel. Rejects with the
 * kernel's error.
 */
export async function load<T>(
  store: Store,
  view: TeachingKey,
  asked?: Record<string, unknown>,
): Promise<Loaded<T>> {
  const kept = store.doc.teaching?.[view];
  if (!asked && kept?.packed) {
    return { facts: (await store.inflated(kept.packed, CHECKS[view])) as T | null, why: '' };
  }
  const { request, save } = store.host;
  if (!request) {
    return { facts: null, why: kept?.why ?? missing(view) };
  }
  const doc = store.doc;
  const answer = (await request('teach', { part: view, ...asked })) as { part: TilesPart; saved: TilesPart };
  if (store.doc === doc) {
    store.doc = { ...doc, teaching: { ...doc.teaching, [view]: answer.saved } };
    if (!doc.modified) {
      save?.(store.doc);
    }
  }
  if (!answer.part.packed) {
    return { facts: null, why: answer.part.why ?? '' };
  }
  return { facts: (await inflate(answer.part.packed, new Budget(), CHECKS[view])) as T, why: '' };
}

/** Identifies the launch that a document shows, so that a view loads again only for another one. */
export function launchKey(store: Store): string {
  const { doc } = store;
  const launch = doc.launches[doc.launches.length - 1];
  return JSON.stringify([doc.version, doc.model, launch?.grid, launch?.constants, doc.modified?.settings]);
}

/** Whether a view has to load its content after a change: for another launch (`loaded` is the key of the last one), or from a new kernel. */
export function mustLoad(store: Store, change: string, loaded: string, hasFacts: boolean): boolean {
  const other = launchKey(store) !== loaded;
  return (change === 'document' && other) || (change === 'host' && (other || !hasFacts));
}

/** Returns the index of an element of an array with this shape as text: `3`, or `1, 0, 5`. */
export function indexText(element: number, shape: readonly number[]): string {
  const found: number[] = [];
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found.unshift(element % shape[axis]);
    element = Math.floor(element / shape[axis]);
  }
  return found.join(', ');
}

/** Returns the elements of a rectangle of the picture of an array as text: `x[4:8]`, `a[0:32, 16:32]`. */
export function regionText(array: LaunchArray, [top, bottom, left, right]: readonly number[]): string {
  const { name, shape, columns } = array;
  const slice = (a: number, b: number): string => (b === a + 1 ? String(a) : `${a}:${b}`);
  if (array.wrapped) {
    return `${name}[${slice(top * columns + left, (bottom - 1) * columns + right)}]`;
  }
  const height = shape[shape.length - 2] ?? 1;
  const block = Math.floor(top / height);
  if (shape.length > 2 && block !== Math.floor((bottom - 1) / height)) {
    return `${name}[rows ${slice(top, bottom)}, ${slice(left, right)}]`;
  }
  const outer = shape.length > 2 ? [indexText(block, shape.slice(0, -2))] : [];
  const rows = slice(top - block * height, bottom - block * height);
  return `${name}[${[...outer, rows, slice(left, right)].join(', ')}]`;
}

/** Returns the ids of a program, whose axis 0 runs fastest, as text: `5`, or `(1, 2)` for a grid of several axes. */
export function programText(program: number, grid: readonly number[]): string {
  const ids = [
    program % grid[0],
    Math.floor(program / grid[0]) % grid[1],
    Math.floor(program / (grid[0] * grid[1])),
  ];
  const rank = grid[2] > 1 ? 3 : grid[1] > 1 ? 2 : 1;
  return rank > 1 ? `(${ids.slice(0, rank).join(', ')})` : String(program);
}

/** Returns a number of bytes as text: `640 B`, `12.5 KiB`. */
export function bytesText(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${Number.isInteger(bytes) || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

/** Decodes the elements of a tile. */
export function elementsOf(value: StepValue): ArrayLike<number> | null {
  if (value.data === undefined || !value.kind) {
    return null;
  }
  const bytes = Uint8Array.from(atob(value.data), (c) => c.charCodeAt(0));
  const types = { u1: Uint8Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
  const Elements = types[value.kind];
  const size = value.shown![0] * value.shown![1];
  return bytes.length === size * Elements.BYTES_PER_ELEMENT ? new Elements(bytes.buffer) : null;
}
