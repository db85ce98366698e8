/** Lines of helpers in other cells: what a selection highlights in listings and in the cells. */

import { expect, test, vi } from 'vitest';

import { linesOf, selectionOf } from '../src/core/cm/links';
import { callsOf, helperLine, inlinedAt, innerOf } from '../src/core/helpers';
import { problemOf } from '../src/core/documents';
import { delta, listing as checkListing } from '../src/core/packed_parts';
import type { Document, Listing } from '../src/core/schema';
import { Store } from '../src/core/store';
import { fixture, saved } from './fixtures';

const helper = {
  name: 'scaled',
  file: '<cell 1>',
  first_line: 2,
  text: 'def scaled(v):\n    return 2 * v\n',
};
const [three, two] = [innerOf('77', 3), innerOf('77', 2)];
const ir: Listing = { text: 'a\nb\nc\nd', lines: [5, 6, 6, 6], ops: [1, 2, 3, 4], inner: [0, two, three, 0] };
const ptx: Listing = { text: 'a\nb\nc', lines: [5, 6, 0] };

function withHelpers(): Document {
  return { ...fixture('scale'), helpers: { 77: helper }, inlined: { 6: [two, three], 9: [three] } };
}

test('a number names a line of a helper', () => {
  expect(helperLine(withHelpers(), three)).toEqual({ helper, line: 3 });
  expect(helperLine(withHelpers(), innerOf('78', 3))).toBeNull();
  expect(inlinedAt(withHelpers(), [5, 6, 9])).toEqual([two, three]);
  expect(callsOf(withHelpers(), three)).toEqual([6, 9]);
});

test('a line of a helper selects the same line of the helper elsewhere, and where that is unknown the call', () => {
  const selection = selectionOf(ir, 2, 'a')!;
  expect(selection).toEqual({ lines: [6], op: 3, inner: [three], from: 'a' });
  const other = { ...selection, op: null };
  expect(linesOf(ir, other)).toEqual({ ops: [], lines: [2] });
  expect(linesOf(ptx, other)).toEqual({ ops: [], lines: [1] });
  expect(linesOf(ir, { lines: [6], op: null, from: 'source' }).lines).toEqual([1, 2, 3]); // the call is selected
});

test('the cells highlight the line of the helper, for machine code all lines that are inlined at the call', () => {
  const highlightSource = vi.fn();
  let report: (inner: number | null) => void = () => {};
  const onHelperLine = (f: typeof report) => ((report = f), () => {});
  const store = new Store(withHelpers(), { ...saved, highlightSource, onHelperLine });
  store.hover(selectionOf(ir, 2, 'a'));
  expect(highlightSource).toHaveBeenLastCalledWith([6], [three]);
  store.hover(selectionOf(ptx, 1, 'a'));
  expect(highlightSource).toHaveBeenLastCalledWith([6], [two, three]);
  store.hover(selectionOf(ptx, 0, 'a'));
  expect(highlightSource).toHaveBeenLastCalledWith([5], []);
  report(three);
  expect(store.selection).toEqual({ lines: [6, 9], op: null, inner: [three], from: 'source' });
  report(null);
  expect(store.selection).toBeNull();
});

test('documents and listings with wrong helpers are refused', () => {
  expect(problemOf(withHelpers())).toBe('');
  expect(problemOf({ ...withHelpers(), helpers: { x: helper } })).not.toBe('');
  expect(problemOf({ ...withHelpers(), helpers: { 7: { ...helper, text: 3 } } })).not.toBe('');
  expect(problemOf({ ...withHelpers(), inlined: { 6: ['a'] } })).not.toBe('');
  expect(() => checkListing(ir, 'x')).not.toThrow();
  expect(() => checkListing({ ...ir, inner: [1] }, 'x')).toThrow();
  expect(() => delta([ir], 'x')).not.toThrow();
  expect(() => delta([{ ...ir, inner: [1] }], 'x')).toThrow();
});
