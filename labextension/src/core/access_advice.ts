/**
 * Advice on an access that moves more sectors or wavefronts than it needs: one change of the kernel, derived from the addresses of the tile.
 * There is no advice where the addresses do not determine the change.
 */

import { elements, isOn, type ArrayFacts, type TileAccess, type TileOp } from './tiles';

const SECTOR = 32; // bytes
/** An access is bad if it moves this many times the sectors of its bytes. */
const BAD = 1.25;

/** Returns the change that makes an access cheaper, as a sentence. Returns null for a good access. */
export function accessAdvice(op: TileOp, access: TileAccess | undefined, array?: ArrayFacts): string | null {
  if (op.shared) {
    return op.shared.ways > 1
      ? 'To fix it: the compiler chooses this swizzle, and another number of warps changes the layouts that conflict. Try num_warps in the Knobs view.'
      : null;
  }
  if (!access?.traffic || op.dot || op.bulk) {
    return null;
  }
  const [requests, found, ideal] = access.traffic;
  return requests && found > BAD * ideal ? globalAdvice(op, access, array) : null;
}

function globalAdvice(op: TileOp, access: TileAccess, array?: ArrayFacts): string | null {
  const per = Math.max(1, SECTOR / op.bytes); // elements of a sector
  if (access.list || access.omitted || access.tables) {
    return 'To fix it: let neighbouring elements of the tile have neighbouring addresses, for example by sorting the indices, or load whole rows of the array.';
  }
  const { steps } = access;
  if (!steps) {
    return null;
  }
  const axes = op.shape.map((_, axis) => axis).filter((axis) => op.shape[axis] > 1);
  const unit = axes.find((axis) => Math.abs(steps[axis]) === 1);
  if (unit === undefined) {
    return strided(op, steps, axes, array);
  }
  if (op.shape[unit] < per) {
    return `To fix it: make axis ${unit} of the tile at least ${per} elements long. It has ${op.shape[unit]} (${op.shape[unit] * op.bytes} bytes), and memory moves sectors of ${SECTOR} bytes.`;
  }
  const start = firstOffset(op, access);
  if (start !== null && start % per) {
    return `To fix it: start the tile at a multiple of ${per} elements. It starts at element ${start}, in the middle of a sector.`;
  }
  const uneven = axes.find((axis) => axis !== unit && steps[axis] % per);
  if (uneven !== undefined) {
    return `To fix it: pad the rows of ${op.what} to a multiple of ${per} elements. They lie ${Math.abs(steps[uneven])} elements apart, so most rows begin in the middle of a sector.`;
  }
  return `To fix it: let the threads of a warp run along axis ${unit} of the tile, whose elements are neighbours in memory. The pass \`coalesce\` does this where no dot fixes the layout.`;
}

function strided(
  op: TileOp,
  steps: readonly number[],
  axes: readonly number[],
  array?: ArrayFacts,
): string | null {
  const axis = axes[axes.length - 1];
  if (axis === undefined || !steps[axis]) {
    return null;
  }
  if (array?.shape.length === 1 && array.strides[0] === 1) {
    return `To fix it: index ${op.what} in steps of 1, for example by passing a contiguous copy of the elements that the kernel needs. Neighbouring elements of the tile are ${Math.abs(steps[axis])} elements apart.`;
  }
  const apart = `Its neighbours along axis ${axis} lie ${Math.abs(steps[axis])} elements apart.`;
  const dense = array?.strides.findIndex((stride, i) => stride === 1 && array.shape[i] > 1) ?? -1;
  return dense >= 0
    ? `To fix it: let an axis of the tile run along axis ${dense} of ${op.what}, whose elements are neighbours in memory. ${apart}`
    : `To fix it: pass ${op.what} as a contiguous array. ${apart}`;
}

/** Returns the offset of the first element that is on, in elements of the array. */
function firstOffset(op: TileOp, access: TileAccess): number | null {
  if (access.base === undefined || !access.steps) {
    return null;
  }
  const size = elements(op.shape);
  return size && isOn(access, op.shape, 0) ? access.base : null;
}
