/**
 * The model of the Tiles view: which thread holds each element of a tile, and which address it accesses. The document
 * (blocknb/notebook/tiles.py) stores layouts as basis vectors over XOR (linear layouts), addresses as a base and strides, and masks as
 * boxes. An element is identified by its row-major index in the tile.
 */

import { size } from './plot/numbers';
import { tiles } from './packed_parts';
import type { TilesPart } from './schema';
import type { Store } from './store';

/** A linear layout: the shape, and the element index that each bit of the register, lane and warp number contributes. */
export type LayoutRow = [shape: number[], reg: number[], lane: number[], warp: number[]];

/** The shape and strides of an array. */
export interface ArrayFacts {
  shape: number[];
  /** In elements. Empty if unknown. */
  strides: number[];
  /** The bytes from the last multiple of 128 bytes to the start of the array. Absent: 0. */
  start?: number;
}

/** Bank conflicts when a warp accesses its part of a tile in shared memory. */
export interface SharedFacts {
  basis: number[];
  how: string;
  instructions: number;
  wavefronts: number;
  ideal: number;
  ways: number;
}

/** A TMA copy. `tile`: the box of one instruction. `swizzle`: bytes of the swizzle pattern. `basis`: the layout of the buffer. */
export interface BulkFacts {
  tile: number[];
  swizzle: number;
  basis: number[];
}

/** An operand of a dot. In registers it has a layout; in shared memory it has the wavefronts of one load per warp. */
export interface Operand {
  shape: number[];
  dtype: string;
  layout?: number;
  wavefronts?: number;
  ideal?: number;
}

/** An op that accesses memory or multiplies tiles. */
export interface TileOp {
  op: number;
  line: number;
  name: string;
  what: string;
  dtype: string;
  bytes: number;
  shape: number[];
  /** Index of the layout. -1: no thread holds the tile. */
  layout: number;
  /** Elements per lane and instruction. */
  vector: number;
  /** Why the access is not wider: all that must be cured for the next width. Absent at 16 bytes. */
  limits?: string[];
  kind?: string;
  shared?: SharedFacts;
  bulk?: BulkFacts;
  dot?: { instr: string; operands: [Operand, Operand] };
}

/** Requests, sectors, ideal sectors, cache lines, most and fewest sectors of a request, most lanes at one address. */
export type Traffic = [number, number, number, number, number, number, number];

/** The access of one op in one program. Offsets are in elements of the array. Without a mask, all elements are active. */
export interface TileAccess {
  array?: string;
  base?: number;
  steps?: number[];
  tables?: number[][];
  list?: number[];
  omitted?: boolean;
  box?: [number, number][];
  bits?: string;
  /** Iterations of the enclosing loop. null: the number depends on data. */
  iterations?: number | null;
  guessed?: boolean;
  traffic?: Traffic;
  why?: string;
}

/** The array that the programs write, and where each program writes. */
export interface ProgramMap extends ArrayFacts {
  op: number;
  array: string;
  /** The extent of a tile along each axis of the array. */
  extent: number[];
  /** The offset of the first element of each program, in launch order. */
  origins: (number | null)[];
}

/** The accesses of one launch. */
export interface Tiles {
  grid: [number, number, number];
  /** Width of the column groups in which programs launch. Absent: the order of the grid. */
  order?: number;
  warps: number;
  /** The launch ran on a GPU: `start` follows from the addresses of its arrays. Absent: it ran on a CPU. */
  addresses?: boolean;
  arrays: Record<string, ArrayFacts>;
  ops: TileOp[];
  programs: Record<string, Record<string, TileAccess>>;
  map: ProgramMap | null;
  layouts: LayoutRow[];
}

/** Decodes the tiles of a document, or returns null. */
export async function unpackTiles(part: TilesPart, store: Store): Promise<Tiles | null> {
  return (await store.inflated(part.packed ?? '', tiles)) as Tiles | null;
}

/** Returns the number of elements of a shape. */
export function elements(shape: readonly number[]): number {
  return shape.reduce((a, b) => a * b, 1);
}

/** Returns the XOR of the bases that the bits of `place` select. */
export function combine(bases: readonly number[], place: number): number {
  return bases.reduce((index, basis, bit) => ((place >> bit) & 1 ? index ^ basis : index), 0);
}

/** For each element: the first warp, lane and register that hold it, and the number of threads that hold it. */
export interface Places {
  warp: Int32Array;
  lane: Int32Array;
  register: Int32Array;
  holders: Int32Array;
}

const cache = new WeakMap<LayoutRow, Places>();

/** Returns the places of all elements under a layout. */
export function places(layout: LayoutRow): Places {
  const found = cache.get(layout) ?? computePlaces(layout);
  cache.set(layout, found);
  return found;
}

function computePlaces([shape, reg, lane, warp]: LayoutRow): Places {
  const all = elements(shape);
  const found: Places = {
    warp: new Int32Array(all),
    lane: new Int32Array(all),
    register: new Int32Array(all),
    holders: new Int32Array(all),
  };
  const registers = Array.from({ length: 1 << reg.length }, (_, r) => combine(reg, r));
  for (let w = 0; w < 1 << warp.length; w++) {
    for (let l = 0; l < 1 << lane.length; l++) {
      const thread = combine(warp, w) ^ combine(lane, l);
      registers.forEach((own, r) => {
        const index = thread ^ own;
        if (found.holders[index]++ === 0) {
          found.warp[index] = w;
          found.lane[index] = l;
          found.register[index] = r;
        }
      });
    }
  }
  return found;
}

/** Returns the coordinates of an element of a tile. */
export function unravel(index: number, shape: readonly number[]): number[] {
  const found: number[] = [];
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found.unshift(index % shape[axis]);
    index = Math.floor(index / shape[axis]);
  }
  return found;
}

/** Returns the offset in the array, relative to the pointer, of an element of the tile. null: unknown. */
export function offsetOf(access: TileAccess, shape: readonly number[], index: number): number | null {
  if (access.list) {
    return access.list[index];
  }
  if (access.base === undefined || access.omitted) {
    return null;
  }
  const at = unravel(index, shape);
  return at.reduce(
    (sum, i, axis) => sum + (access.steps ? i * access.steps[axis] : (access.tables?.[axis][i] ?? 0)),
    access.base,
  );
}

/** Tells whether the mask of an element is true. */
export function isOn(access: TileAccess, shape: readonly number[], index: number): boolean {
  if (access.bits !== undefined) {
    return ((parseInt(access.bits.substr((index >> 3) * 2, 2), 16) >> (index & 7)) & 1) === 1;
  }
  const at = unravel(index, shape);
  return access.box === undefined || access.box.every(([low, high], a) => at[a] >= low && at[a] < high);
}

/** Returns the coordinates of the array element at an offset, or null if the strides do not determine them. */
export function locate(array: ArrayFacts | undefined, offset: number): number[] | null {
  if (!array || array.strides.length !== array.shape.length || offset < 0) {
    return null;
  }
  const found = array.shape.map(() => 0);
  const axes = array.strides.map((_, axis) => axis).filter((axis) => array.shape[axis] > 1);
  axes.sort((a, b) => array.strides[b] - array.strides[a]);
  let left = offset;
  for (const axis of axes) {
    if (array.strides[axis] <= 0) {
      return null;
    }
    found[axis] = Math.floor(left / array.strides[axis]);
    left %= array.strides[axis];
  }
  return left === 0 && found.every((x, axis) => x < Math.max(1, array.shape[axis])) ? found : null;
}

/** Returns the shared-memory bank of the first byte of an element. */
export function bankOf(op: TileOp, index: number): number {
  return Math.floor((combine(op.shared?.basis ?? op.bulk?.basis ?? [], index) * op.bytes) / 4) % 32;
}

/** Returns the index of the TMA instruction (box) that copies an element. */
export function boxOf(op: TileOp, index: number): number {
  const tile = op.bulk?.tile ?? op.shape;
  const at = unravel(index, op.shape);
  return at.reduce(
    (number, x, axis) => number * Math.ceil(op.shape[axis] / tile[axis]) + Math.floor(x / tile[axis]),
    0,
  );
}

/** Numbers the 32-byte sector of each element, from 0 in the order of addresses. -1: masked off or unknown. */
export function sectors(op: TileOp, access: TileAccess, start = 0): Int32Array {
  const all = elements(op.shape);
  const raw: (number | null)[] = [];
  for (let i = 0; i < all; i++) {
    const offset = isOn(access, op.shape, i) ? offsetOf(access, op.shape, i) : null;
    raw.push(offset === null ? null : Math.floor((offset * op.bytes + start) / 32));
  }
  const different = [...new Set(raw.filter((s): s is number => s !== null))].sort((a, b) => a - b);
  const rank = new Map(different.map((s, i) => [s, i]));
  return Int32Array.from(raw, (s) => (s === null ? -1 : (rank.get(s) ?? -1)));
}

// ---- texts ---------------------------------------------------------------------------------------------------------------

const NAMES: Record<string, string> = {
  local_store: 'shared store',
  local_load: 'shared load',
  copy_async: 'async copy',
  copy_bulk: 'TMA copy',
  store_bulk: 'TMA store',
  atomic_cas: 'atomic cas',
};

/** Returns the title of an op, such as "load x", "atomic add out" or "shared store tile". */
export function title(op: TileOp): string {
  const name = NAMES[op.name] ?? (op.kind ? `${op.name} ${op.kind}` : op.name);
  return op.what ? `${name} ${op.what}` : name;
}

/** Returns the short verdict that the list shows next to an op. */
export function verdict(op: TileOp, access: TileAccess | undefined): string {
  if (op.dot) {
    return op.dot.instr || 'FMA';
  }
  if (op.shared) {
    return op.shared.ways > 1 ? `${op.shared.ways}-way bank conflict` : 'no bank conflict';
  }
  if (op.bulk) {
    return access?.why ?? (access ? describeBoxes(op, op.bulk) : 'not executed');
  }
  if (!access?.traffic) {
    return access ? (access.why ?? '') : 'not executed';
  }
  const [requests, found, ideal] = access.traffic;
  return requests
    ? `${round(found / requests)} sectors per request, ideal ${round(ideal / requests)}`
    : 'masked off';
}

/** Says where the array of an access starts, and from where that is known. */
export function startSentence(facts: Tiles, access: TileAccess | undefined): string {
  const name = access?.array;
  if (!name || !access.traffic) {
    return '';
  }
  const start = facts.arrays[name]?.start ?? 0;
  const place = start
    ? `${count(start, 'byte')} after a multiple of 128 bytes`
    : 'at a multiple of 128 bytes';
  return facts.addresses
    ? `In this launch, ${name} starts ${place}.`
    : `The launch ran on the CPU. The figures assume that memory on a GPU starts at a multiple of 128 bytes; ${name} then starts ${place}.`;
}

/** Describes the hardware's work for an op, one sentence per string. */
export function sentences(op: TileOp, access: TileAccess | undefined): string[] {
  if (op.dot) {
    return dotSentences(op);
  }
  if (op.shared) {
    return sharedSentences(op, op.shared);
  }
  if (!access) {
    return ['This program does not execute the op.'];
  }
  const found = access.why ? [`Unknown: ${access.why}.`] : [];
  if (op.bulk) {
    return [...found, ...bulkSentences(op, op.bulk, access)];
  }
  if (access.guessed) {
    found.push('The mask depends on loaded data. The figures assume that it is true.');
  }
  if (access.traffic) {
    found.push(...trafficSentences(op, access.traffic));
  }
  const off = elementsOff(op, access);
  return off ? [...found, `${off} are masked off.`] : found;
}

function trafficSentences(op: TileOp, traffic: Traffic): string[] {
  const [requests, found, ideal, lines, most, least, lanesPerAddress] = traffic;
  if (!requests) {
    return ['All elements are masked off: the program makes no memory request.'];
  }
  const range = most === least ? '' : ` (${least} to ${most})`;
  const waste =
    found > ideal
      ? `${percent(1 - ideal / found)} of the transferred bytes are unused`
      : 'all transferred bytes are used';
  const texts = [
    `${round(found / requests)} sectors per request${range}, ideal ${round(ideal / requests)}: ${waste}.`,
    `The program makes ${count(requests, 'request')} for ${count(found, 'sector')} of 32 bytes (${size(found * 32)}) in ${count(lines, 'cache line')} of 128 bytes.`,
    vectorSentence(op),
    ...(op.limits?.length ? [`Not wider: ${op.limits.join('; and ')}.`] : []),
  ];
  if (op.name.startsWith('atomic') && lanesPerAddress > 1) {
    texts.push(`Up to ${lanesPerAddress} lanes of a request update the same element, one after another.`);
  }
  return texts;
}

function vectorSentence(op: TileOp): string {
  const bits = op.vector * op.bytes * 8;
  return `Vector width ${op.vector}: each lane accesses ${op.vector} × ${op.dtype} (${bits} bits) per instruction.`;
}

function swizzleFormula(swizzle: number): string {
  const rows = 128 / swizzle;
  return `p xor (${rows > 1 ? `⌊r / ${rows}⌋` : 'r'} mod ${swizzle / 16})`;
}

/** Returns, for example, "9 of 64 elements", or '' if no element is masked off. */
function elementsOff({ shape }: TileOp, access: TileAccess): string {
  const all = elements(shape);
  let off = 0;
  for (let i = 0; i < all; i++) {
    off += isOn(access, shape, i) ? 0 : 1;
  }
  return off ? `${off} of ${all} elements` : '';
}

/** Returns the number of TMA instructions that copy the tile of an op. */
export function boxes({ shape, bulk }: TileOp): number {
  return bulk ? elements(shape) / elements(bulk.tile) : 0;
}

/** Returns, for example, "2 boxes of 128 × 64, 32 KiB". */
function describeBoxes(op: TileOp, { tile }: BulkFacts): string {
  const number = boxes(op);
  return `${number} ${number === 1 ? 'box' : 'boxes'} of ${tile.join(' × ')}, ${size(elements(op.shape) * op.bytes)}`;
}

function bulkSentences(op: TileOp, facts: BulkFacts, access: TileAccess): string[] {
  const store = op.name === 'store_bulk';
  const off = elementsOff(op, access);
  const edge = store ? 'TMA does not store them' : 'TMA fills them with zeros';
  return [
    `TMA copies ${store ? 'to' : 'from'} ${op.what}: ${describeBoxes(op, facts)}. No thread holds the tile.`,
    ...(off ? [`${off} are out of bounds: ${edge}.`] : []),
    facts.swizzle
      ? `Shared memory uses a ${facts.swizzle}-byte swizzle: chunk p (16 bytes) of row r is stored at position ${swizzleFormula(facts.swizzle)}.`
      : 'Shared memory holds the tile row by row, without a swizzle.',
  ];
}

function sharedSentences(op: TileOp, facts: SharedFacts): string[] {
  const conflict = facts.ways > 1 ? `${facts.ways}-way bank conflict` : 'No bank conflict';
  const how = facts.how.startsWith('ldmatrix')
    ? `${count(facts.instructions, facts.how + ' instruction')} per warp.`
    : `${count(facts.instructions, facts.how + ' instruction')} per warp. ${vectorSentence(op)}`;
  return [
    `${conflict}: ${count(facts.wavefronts, 'wavefront')} per warp, ideal ${facts.ideal}.`,
    how,
    'This is the same in all programs. Shared memory has 32 banks of 4 bytes. A 64-bit access takes two half-warps, a 128-bit access four quarter-warps.',
  ];
}

function dotSentences(op: TileOp): string[] {
  const [a, b] = op.dot!.operands;
  const size = `${a.shape[0]} × ${a.shape[1]} by ${b.shape[0]} × ${b.shape[1]}`;
  const found = [
    op.dot!.instr
      ? `${size} with ${op.dot!.instr.startsWith('wgmma') ? '' : 'mma.sync '}${op.dot!.instr} on tensor cores.`
      : `${size} with FMA instructions, without tensor cores.`,
  ];
  (['left', 'right'] as const).forEach((side, i) => {
    const { wavefronts, ideal } = op.dot!.operands[i];
    if (wavefronts !== undefined && ideal !== undefined) {
      found.push(
        `The ${side} operand stays in shared memory. One load takes ${count(wavefronts, 'wavefront')}, ideal ${ideal}.`,
      );
    }
  });
  return [...found, 'This is the same in all programs.'];
}

/** Returns the program ids of the program with this launch number. x is the fastest axis, within groups of `width` columns. */
export function programIds(number: number, grid: readonly number[], width = grid[0]): number[] {
  const [across, down] = grid;
  const inside = number % (across * down);
  const first = Math.floor(inside / (width * down)) * width;
  const columns = Math.min(across - first, width);
  const within = inside - first * down;
  return [first + (within % columns), Math.floor(within / columns), Math.floor(number / (across * down))];
}

/** Returns, for example, "program 5 of 64", followed by the program ids if the grid has several axes. */
export function programName(number: number, grid: readonly number[], width?: number): string {
  const total = elements(grid);
  const ids = programIds(number, grid, width);
  const rank = grid[2] > 1 ? 3 : grid[1] > 1 ? 2 : 1;
  return `program ${number} of ${total}${rank > 1 ? ` (${ids.slice(0, rank).join(', ')})` : ''}`;
}

function round(x: number): string {
  return String(Math.round(x * 10) / 10);
}

function percent(x: number): string {
  return `${Math.round(x * 100)} %`;
}

function count(n: number, what: string): string {
  return `${n} ${what}${n === 1 ? '' : 's'}`;
}
