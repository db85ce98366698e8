/**
 * Who holds and touches which element of a tile, worked out from what the document saves (blocknb/notebook/tiles.py): layouts as basis
 * vectors over XOR, addresses as a start and steps, masks as boxes. An element is its row-major index in the tile.
 */

import { size } from './plot/numbers';
import { inflate, type TilesPart } from './schema';

/** Shape, and the index that each bit of the register, lane and warp number contributes. */
export type LayoutRow = [shape: number[], reg: number[], lane: number[], warp: number[]];

export interface ArrayFacts {
  shape: number[];
  /** In elements; empty where nobody knows them. */
  strides: number[];
}

/** Conflicts of shared memory, for a warp that moves its whole part of the tile. */
export interface SharedFacts {
  basis: number[];
  how: string;
  instructions: number;
  wavefronts: number;
  ideal: number;
  ways: number;
}

/** What the copy engine moves: `tile` is one instruction's part, `swizzle` the bytes of a row under a pattern, `basis` the buffer's layout. */
export interface BulkFacts {
  tile: number[];
  swizzle: number;
  basis: number[];
}

/** An operand of a dot: in registers it has a layout; in shared memory, what one load of it costs a warp. */
export interface Operand {
  shape: number[];
  dtype: string;
  layout?: number;
  wavefronts?: number;
  ideal?: number;
}

export interface TileOp {
  op: number;
  line: number;
  name: string;
  what: string;
  dtype: string;
  bytes: number;
  shape: number[];
  /** −1: no thread holds the tile. */
  layout: number;
  /** Elements that a lane moves in one instruction. */
  vector: number;
  kind?: string;
  shared?: SharedFacts;
  bulk?: BulkFacts;
  dot?: { instr: string; operands: [Operand, Operand] };
}

/** requests, sectors, ideal sectors, lines, most and least sectors of a request, most lanes at one address. */
export type Traffic = [number, number, number, number, number, number, number];

/** What one op touches in one program. Offsets are in elements of the array; no mask given: all are on. */
export interface TileAccess {
  array?: string;
  base?: number;
  steps?: number[];
  tables?: number[][];
  list?: number[];
  omitted?: boolean;
  box?: [number, number][];
  bits?: string;
  /** Of the loop around it; null: depends on data. */
  trips?: number | null;
  guessed?: boolean;
  traffic?: Traffic;
  why?: string;
}

export interface ProgramMap extends ArrayFacts {
  op: number;
  array: string;
  /** How far a tile reaches along each axis of the array. */
  extent: number[];
  /** For each program, in launch order, the offset of its first element. */
  origins: (number | null)[];
}

export interface Tiles {
  grid: [number, number, number];
  /** Programs begin in groups of so many columns of the grid; not given: in its own order. */
  order?: number;
  warps: number;
  arrays: Record<string, ArrayFacts>;
  ops: TileOp[];
  programs: Record<string, Record<string, TileAccess>>;
  map: ProgramMap | null;
  layouts: LayoutRow[];
}

export async function unpackTiles(part: TilesPart): Promise<Tiles> {
  return (await inflate(part.packed ?? '')) as Tiles;
}

/** How many elements a tile of this shape has, or a grid programs. */
export function elements(shape: readonly number[]): number {
  return shape.reduce((a, b) => a * b, 1);
}

/** XOR of the bases that the bits of `place` select. */
export function combine(bases: readonly number[], place: number): number {
  return bases.reduce((index, basis, bit) => ((place >> bit) & 1 ? index ^ basis : index), 0);
}

/** For each element its first place, by warp, lane, register, and how many threads hold it. */
export interface Places {
  warp: Int32Array;
  lane: Int32Array;
  register: Int32Array;
  holders: Int32Array;
}

const known = new WeakMap<LayoutRow, Places>();

export function places(layout: LayoutRow): Places {
  const found = known.get(layout) ?? deal(layout);
  known.set(layout, found);
  return found;
}

function deal([shape, reg, lane, warp]: LayoutRow): Places {
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

/** The coordinates of an element of a tile. */
export function unravel(index: number, shape: readonly number[]): number[] {
  const found: number[] = [];
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found.unshift(index % shape[axis]);
    index = Math.floor(index / shape[axis]);
  }
  return found;
}

/** The element of the array that an element of the tile stands for, counted from where the pointer points; null: not known. */
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

/** Whether the mask is on. */
export function isOn(access: TileAccess, shape: readonly number[], index: number): boolean {
  if (access.bits !== undefined) {
    return ((parseInt(access.bits.substr((index >> 3) * 2, 2), 16) >> (index & 7)) & 1) === 1;
  }
  const at = unravel(index, shape);
  return access.box === undefined || access.box.every(([low, high], a) => at[a] >= low && at[a] < high);
}

/** The coordinates in an array of the element at an offset; null where its strides do not say. */
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

/** The bank of shared memory that an element's first byte lies in. */
export function bankOf(op: TileOp, index: number): number {
  return Math.floor((combine(op.shared?.basis ?? op.bulk?.basis ?? [], index) * op.bytes) / 4) % 32;
}

/** Which instruction of the copy engine moves an element; 0 where there is one only. */
export function boxOf(op: TileOp, index: number): number {
  const tile = op.bulk?.tile ?? op.shape;
  const at = unravel(index, op.shape);
  return at.reduce(
    (number, x, axis) => number * Math.ceil(op.shape[axis] / tile[axis]) + Math.floor(x / tile[axis]),
    0,
  );
}

/** For each element the number of its sector of 32 bytes, counted in the order of addresses from 0 on; -1: off or not known. */
export function sectors(op: TileOp, access: TileAccess): Int32Array {
  const all = elements(op.shape);
  const raw: (number | null)[] = [];
  for (let i = 0; i < all; i++) {
    const offset = isOn(access, op.shape, i) ? offsetOf(access, op.shape, i) : null;
    raw.push(offset === null ? null : Math.floor((offset * op.bytes) / 32));
  }
  const different = [...new Set(raw.filter((s): s is number => s !== null))].sort((a, b) => a - b);
  const rank = new Map(different.map((s, i) => [s, i]));
  return Int32Array.from(raw, (s) => (s === null ? -1 : (rank.get(s) ?? -1)));
}

// ---- in words ------------------------------------------------------------------------------------------------------------

const NAMES: Record<string, string> = {
  local_store: 'shared store',
  local_load: 'shared load',
  copy_async: 'copy to shared',
  copy_bulk: 'TMA copy',
  store_bulk: 'TMA store',
  atomic_cas: 'atomic cas',
};

/** "load x", "atomic add out", "shared store tile". */
export function title(op: TileOp): string {
  const name = NAMES[op.name] ?? (op.kind ? `${op.name} ${op.kind}` : op.name);
  return op.what ? `${name} ${op.what}` : name;
}

/** The short verdict on an op: what the list shows beside it. */
export function verdict(op: TileOp, access: TileAccess | undefined): string {
  if (op.dot) {
    return op.dot.instr || 'multiply-adds';
  }
  if (op.shared) {
    return op.shared.ways > 1 ? `${op.shared.ways}-way bank conflict` : 'no bank conflict';
  }
  if (op.bulk) {
    return access?.why ?? (access ? boxesInWords(op, op.bulk) : 'not reached');
  }
  if (!access?.traffic) {
    return access ? (access.why ?? '') : 'not reached';
  }
  const [requests, found, ideal] = access.traffic;
  return requests
    ? `${round(found / requests)} sectors a request, ideal ${round(ideal / requests)}`
    : 'masked off';
}

/** What the hardware does for an op, sentence by sentence. */
export function sentences(op: TileOp, access: TileAccess | undefined): string[] {
  if (op.dot) {
    return dotSentences(op);
  }
  if (op.shared) {
    return sharedSentences(op, op.shared);
  }
  if (!access) {
    return ['This program does not reach the op.'];
  }
  const found = access.why ? [`Not known: ${access.why}.`] : [];
  if (op.bulk) {
    return [...found, ...bulkSentences(op, op.bulk, access)];
  }
  if (access.guessed) {
    found.push('The mask depends on loaded data; it is taken to be on.');
  }
  if (access.traffic) {
    found.push(...trafficSentences(op, access.traffic));
  }
  const off = elementsOff(op, access);
  return off ? [...found, `${off} are masked off.`] : found;
}

function trafficSentences(op: TileOp, traffic: Traffic): string[] {
  const [requests, found, ideal, lines, most, least, together] = traffic;
  if (!requests) {
    return ['Every element is masked off: nothing is asked of memory.'];
  }
  const range = most === least ? '' : ` (${least} to ${most})`;
  const waste =
    found > ideal ? `${percent(1 - ideal / found)} of what is moved is not asked for` : 'none is wasted';
  const said = [
    `${round(found / requests)} sectors a request${range}, ideal ${round(ideal / requests)}: ${waste}.`,
    `${count(requests, 'request')} of this program touch ${count(found, 'sector')} of 32 bytes (${size(found * 32)}), ${count(lines, 'line')} of 128.`,
    vectorSentence(op),
  ];
  if (op.name.startsWith('atomic') && together > 1) {
    said.push(`Up to ${together} lanes of a request update one element, one after another.`);
  }
  return said;
}

function vectorSentence(op: TileOp): string {
  const bits = op.vector * op.bytes * 8;
  return `Vector width ${op.vector}: a lane moves ${op.vector} × ${op.dtype} (${bits} bits) in one instruction.`;
}

function pieces(swizzle: number): string {
  const rows = 128 / swizzle;
  return `p xor (${rows > 1 ? `⌊r / ${rows}⌋` : 'r'} mod ${swizzle / 16})`;
}

/** "9 of 64 elements"; '' when all are on. */
function elementsOff({ shape }: TileOp, access: TileAccess): string {
  const all = elements(shape);
  let off = 0;
  for (let i = 0; i < all; i++) {
    off += isOn(access, shape, i) ? 0 : 1;
  }
  return off ? `${off} of ${all} elements` : '';
}

/** How many instructions of the copy engine move an op's tile. */
export function boxes({ shape, bulk }: TileOp): number {
  return bulk ? elements(shape) / elements(bulk.tile) : 0;
}

/** "2 boxes of 128 × 64, 32 KiB". */
function boxesInWords(op: TileOp, { tile }: BulkFacts): string {
  const number = boxes(op);
  return `${number} ${number === 1 ? 'box' : 'boxes'} of ${tile.join(' × ')}, ${size(elements(op.shape) * op.bytes)}`;
}

function bulkSentences(op: TileOp, facts: BulkFacts, access: TileAccess): string[] {
  const store = op.name === 'store_bulk';
  const off = elementsOff(op, access);
  const edge = store ? 'they are not stored' : 'zeros take their place';
  return [
    `${store ? 'To' : 'From'} ${op.what} by the copy engine (TMA): ${boxesInWords(op, facts)}; no thread holds it.`,
    ...(off ? [`${off} lie outside of the array: ${edge}.`] : []),
    facts.swizzle
      ? `In shared memory under a ${facts.swizzle}-byte swizzle: row r has its 16-byte pieces in the order ${pieces(facts.swizzle)}.`
      : 'In shared memory as it is, row after row.',
  ];
}

function sharedSentences(op: TileOp, facts: SharedFacts): string[] {
  const conflict = facts.ways > 1 ? `${facts.ways}-way bank conflict` : 'No bank conflict';
  const how = facts.how.startsWith('ldmatrix')
    ? `${count(facts.instructions, facts.how + ' instruction')} a warp.`
    : `${count(facts.instructions, facts.how + ' instruction')} a warp; ${vectorSentence(op).toLowerCase()}`;
  return [
    `${conflict}: ${count(facts.wavefronts, 'wavefront')} for a warp’s part of the tile, ideal ${facts.ideal}.`,
    how,
    'The same in every program. 32 banks of 4 bytes; 64-bit accesses go in two halves of a warp, 128-bit ones in four quarters.',
  ];
}

function dotSentences(op: TileOp): string[] {
  const [a, b] = op.dot!.operands;
  const size = `${a.shape[0]} × ${a.shape[1]} by ${b.shape[0]} × ${b.shape[1]}`;
  const found = [
    op.dot!.instr
      ? `${size} by ${op.dot!.instr.startsWith('wgmma') ? '' : 'mma.sync '}${op.dot!.instr} on tensor cores.`
      : `${size} by multiply-adds of each thread: no tensor core.`,
  ];
  (['left', 'right'] as const).forEach((side, i) => {
    const { wavefronts, ideal } = op.dot!.operands[i];
    if (wavefronts !== undefined && ideal !== undefined) {
      found.push(
        `The ${side} operand stays in shared memory; one load of it takes ${count(wavefronts, 'wavefront')}, ideal ${ideal}.`,
      );
    }
  });
  return [...found, 'The same in every program.'];
}

/** Where in the grid the program stands that begins as that number: x fastest, in groups of `width` columns if given. */
export function placeOf(number: number, grid: readonly number[], width = grid[0]): number[] {
  const [across, down] = grid;
  const inside = number % (across * down);
  const first = Math.floor(inside / (width * down)) * width;
  const columns = Math.min(across - first, width);
  const within = inside - first * down;
  return [first + (within % columns), Math.floor(within / columns), Math.floor(number / (across * down))];
}

/** "program 5 of 64", with its ids where the grid has more than one axis. */
export function programName(number: number, grid: readonly number[], width?: number): string {
  const total = elements(grid);
  const ids = placeOf(number, grid, width);
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
