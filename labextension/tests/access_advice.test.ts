/** The advice on a bad access: the change that it names lowers the number of sectors, counted from the addresses. */

import { expect, test } from 'vitest';

import { accessAdvice } from '../src/core/access_advice';
import { sectors, type ArrayFacts, type TileAccess, type TileOp } from '../src/core/tiles';

const op = (shape: number[]): TileOp => ({
  op: 1,
  line: 1,
  name: 'load',
  what: 'x',
  dtype: 'fp32',
  bytes: 4,
  shape,
  layout: 0,
  vector: 1,
});
const matrix: ArrayFacts = { shape: [1000, 1000], strides: [1000, 1] };

/** The access of a tile, with the sectors of its addresses as its traffic. */
function access(shape: number[], base: number, steps: number[], list?: number[]): TileAccess {
  const bare: TileAccess = { array: 'x', ...(list ? { list } : { base, steps }) };
  const found = new Set(sectors(op(shape), bare)).size;
  const ideal = (shape.reduce((a, b) => a * b, 1) * 4) / 32;
  return { ...bare, traffic: [1, found, ideal, found, found, found, 1] };
}
const moved = (one: TileAccess): number => one.traffic![1];

test('a column of a matrix: run along its rows', () => {
  const bad = access([64], 0, [1000]);
  expect(accessAdvice(op([64]), bad, matrix)).toContain('let an axis of the tile run along axis 1 of x');
  expect(accessAdvice(op([64]), bad, matrix)).toContain('1000 elements apart');
  const fixed = access([64], 0, [1]);
  expect(moved(fixed)).toBeLessThan(moved(bad));
  expect(accessAdvice(op([64]), fixed, matrix)).toBeNull();
});

test('every second element of an array of one axis: take steps of 1', () => {
  const line = { ...matrix, shape: [1000], strides: [1] };
  const found = accessAdvice(op([64]), access([64], 0, [2]), line);
  expect(found).toContain('index x in steps of 1');
  expect(found).toContain('Neighbouring elements of the tile are 2 elements apart.');
});

test('a strided view: pass a contiguous array', () => {
  const view: ArrayFacts = { shape: [500], strides: [2] };
  expect(accessAdvice(op([64]), access([64], 0, [2]), view)).toContain('pass x as a contiguous array');
});

test('short rows: make the tile wider', () => {
  const bad = access([16, 2], 0, [1000, 1]);
  expect(accessAdvice(op([16, 2]), bad, matrix)).toContain(
    'make axis 1 of the tile at least 8 elements long',
  );
  const fixed = access([4, 8], 0, [1000, 1]);
  expect(moved(fixed)).toBeLessThan(moved(bad));
  expect(accessAdvice(op([4, 8]), fixed, matrix)).toBeNull();
});

test('a start in the middle of a sector: start at a multiple', () => {
  const bad = access([8], 3, [1]);
  expect(accessAdvice(op([8]), bad, matrix)).toContain(
    'start the tile at a multiple of 8 elements. It starts at element 3',
  );
  const fixed = access([8], 8, [1]);
  expect(moved(fixed)).toBeLessThan(moved(bad));
  expect(accessAdvice(op([8]), fixed, matrix)).toBeNull();
});

test('rows that begin in the middle of a sector: pad them', () => {
  const bad = access([16, 8], 0, [1001, 1]);
  expect(accessAdvice(op([16, 8]), bad, matrix)).toContain('pad the rows of x to a multiple of 8 elements');
  const fixed = access([16, 8], 0, [1008, 1]);
  expect(moved(fixed)).toBeLessThan(moved(bad));
  expect(accessAdvice(op([16, 8]), fixed, matrix)).toBeNull();
});

test('scattered addresses: sort them', () => {
  const list = Array.from({ length: 32 }, (_, i) => (i * 7919) % 4096);
  const bad = access([32], 0, [], list);
  expect(accessAdvice(op([32]), bad, matrix)).toContain('sorting the indices');
});

test('an access without traffic, a good one and a dot have no advice', () => {
  expect(accessAdvice(op([8]), { array: 'x' }, matrix)).toBeNull();
  expect(accessAdvice(op([8]), undefined, matrix)).toBeNull();
  expect(
    accessAdvice({ ...op([8]), dot: { instr: '', operands: [] as never } }, access([8], 3, [1]), matrix),
  ).toBeNull();
});

test('a bank conflict leads to the knob that changes the layouts', () => {
  const shared = { basis: [], how: '32-bit', instructions: 1, wavefronts: 8, ideal: 1, ways: 8 };
  expect(accessAdvice({ ...op([32]), shared }, undefined)).toContain('num_warps');
  expect(accessAdvice({ ...op([32]), shared: { ...shared, ways: 1 } }, undefined)).toBeNull();
});
