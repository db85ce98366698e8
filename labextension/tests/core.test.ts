import { readFileSync } from 'node:fs';

import { describe, expect, test, vi } from 'vitest';

import { changedWords } from '../src/core/cm/diff';
import { linesOf, selectionOf } from '../src/core/cm/links';
import { explain } from '../src/core/explain';
import { PTX } from '../src/core/explain/ptx';
import { SASS } from '../src/core/explain/sass';
import { difference, type Hunk } from '../src/core/hunks';
import { readable } from '../src/core/documents';
import { Budget, unpack } from '../src/core/inflate';
import { timing } from '../src/core/plot/numbers';
import type { Document, Listing } from '../src/core/schema';
import { Store } from '../src/core/store';
import { upgrade } from '../src/core/upgrade';
import { opHistory } from '../src/core/views/provenance';
import { fixture, random, saved } from './fixtures';

describe('schema', () => {
  test('a listing of templates unpacks to the listing that Python packed', async () => {
    const path = `${import.meta.dirname}/fixtures/templates.json`;
    const { listing, packed } = JSON.parse(readFileSync(path, 'utf8')) as {
      listing: Listing;
      packed: string;
    };
    expect(await unpack(packed, new Budget(), () => Promise.resolve(null))).toEqual(listing);
  });

  test('every blob of a document unpacks, with a line for each line of its text', async () => {
    const doc = fixture('scale');
    const store = new Store(doc, saved);
    for (const hash of Object.keys(doc.blobs)) {
      const listing = (await store.listing(hash))!;
      expect(listing.lines.length).toBe(listing.text.split('\n').length);
      expect(listing.ops?.length ?? listing.lines.length).toBe(listing.lines.length);
    }
  });

  test('a document with a newer schema and other values are not readable', () => {
    const doc = fixture('scale');
    expect(readable(doc)).toBe(true);
    expect(readable({ ...doc, schema: doc.schema + 1 })).toBe(false);
    expect(readable({ ...doc, views: undefined })).toBe(false);
    expect(readable(null)).toBe(false);
    expect(readable('text')).toBe(false);
  });

  test('an old document gets times in the new form, which say that their state is unknown', () => {
    const doc = fixture('scale');
    const old = {
      ...doc,
      schema: 3,
      launches: [{ ...doc.launches[0], time: undefined, milliseconds: [1, 2], median: 1.5, launches: 2 }],
      history: {
        versions: doc.history!.versions.map((v) => ({ ...v, time: undefined, milliseconds: 1.25 })),
      },
      bench: { unit: 'ms', rounds: 9, rows: [{ label: 'a', kind: 'kernel', median: 2, low: 1, high: 3 }] },
    } as unknown as Document;
    expect(readable(old)).toBe(true);
    const found = new Store(old, saved).doc;
    expect(timing(found.launches[0].time!)).toBe('1.5 ms (median of 2)');
    expect(timing(found.history!.versions[0].time!)).toBe('1.25 ms');
    expect(timing(found.bench!.rows[0].time!)).toBe('2 ms (median of 9, 1 ms to 3 ms)');
    expect(upgrade(doc)).toBe(doc);
  });

  test('a damaged blob rejects', async () => {
    const none = vi.fn();
    await expect(unpack('bm90IGd6aXA=', new Budget(), none)).rejects.toThrow();
    expect(none).not.toHaveBeenCalled();
  });

  test('a listing stored as a difference decodes to the original, and is a problem without its base', async () => {
    const doc = fixture('scale');
    const [hash, packed] = Object.entries(doc.blobs).find(([, packed]) => packed.includes(' '))!;
    const listing = await new Store(doc, saved).listing(hash);
    const content = JSON.stringify({ text: listing!.text, lines: listing!.lines, ops: listing!.ops });
    const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(content));
    expect(Buffer.from(digest).toString('hex').slice(0, 16)).toBe(hash);
    delete doc.blobs[packed.split(' ')[1]];
    const without = new Store(doc, saved);
    expect(await without.listing(hash)).toBe(null);
    expect(without.problem?.text).toContain('missing');
  });
});

describe('store', () => {
  test('it first selects the GPU target, and keeps the target when the document changes', () => {
    const doc = fixture('scale');
    const store = new Store(doc, saved);
    expect(store.current.target).toBe('sm_90a');
    store.selectView(0);
    store.update(fixture('versions'));
    expect(store.current.target).toBe(doc.views[0].target);
  });

  test('the hovered selection takes precedence over the pinned one, also in the cell', () => {
    const highlightSource = vi.fn();
    const store = new Store(fixture('scale'), { ...saved, highlightSource });
    store.pin({ lines: [4], op: null, from: 'a' });
    store.hover({ lines: [5], op: 1, from: 'b' });
    expect(store.selection?.lines).toEqual([5]);
    store.hover(null);
    expect(store.selection?.lines).toEqual([4]);
    expect(highlightSource.mock.calls.map(([lines]) => lines as number[])).toEqual([[4], [5], [4]]);
    store.pin(null);
    expect(highlightSource).toHaveBeenLastCalledWith(null, []);
  });

  test('the kernel supplies a listing that the document omits, once, and again after a failure', async () => {
    const listing: Listing = { text: 'fetched', lines: [0] };
    const fetchBlob = vi.fn().mockRejectedValueOnce(new Error('busy')).mockResolvedValue(listing);
    const store = new Store(fixture('scale'), { ...saved, fetchBlob });
    expect(await store.listing('0123')).toBe(null);
    expect(store.problem?.text).toContain('busy');
    expect(await store.listing('0123')).toBe(listing);
    expect(await store.listing('0123')).toBe(listing);
    expect(fetchBlob).toHaveBeenCalledTimes(2);
    expect(await new Store(fixture('scale'), saved).listing('0123')).toBeNull();
  });

  test('the line under the pointer in the cell is a selection until the host changes', () => {
    let report: (line: number | null) => void = () => {};
    const stop = vi.fn();
    const store = new Store(fixture('scale'), { ...saved, onSourceLine: (f) => ((report = f), stop) });
    report(7);
    expect(store.selection?.lines).toEqual([7]);
    store.connect(saved);
    expect(stop).toHaveBeenCalledOnce();
  });
});

test('a line of a listing selects its op and its source line, and finds its counterparts', () => {
  const listing: Listing = { text: 'a\nb\nc\nd', lines: [3, 0, 4, 3], ops: [1, 2, -1, -1] };
  expect(selectionOf(listing, 0, 'x')).toEqual({ lines: [3], op: 1, from: 'x' });
  expect(selectionOf(listing, 1, 'x')).toEqual({ lines: [], op: 2, from: 'x' });
  expect(selectionOf({ text: 'a', lines: [0] }, 0, 'x')).toBeNull();
  expect(linesOf(listing, { lines: [3], op: 1, from: 'x' })).toEqual({ ops: [0], lines: [3] });
});

test('the history of an op names the passes that created, moved and removed it', () => {
  const stages = fixture('scale').views[1].stages!;
  const first = stages[0].made[0];
  expect(opHistory(stages, first)).toContain('created by parse');
  const remover = stages.find((stage) => stage.deleted.length)!;
  expect(opHistory(stages, remover.deleted[0])).toContain(`removed by ${remover.name}`);
  expect(opHistory(stages, 123456)).toBe('op 123456');
});

// ---- differences -------------------------------------------------------------------------------------------------------------

/** Returns the right side, computed from the left side and the hunks. */
function patched(a: string[], b: string[], hunks: readonly Hunk[]): string[] {
  const result: string[] = [];
  let at = 0;
  for (const { fromA, toA, fromB, toB } of hunks) {
    result.push(...a.slice(at, fromA), ...b.slice(fromB, toB));
    at = toA;
  }
  return [...result, ...a.slice(at)];
}

function listingOf(ops: [number, string][]): Listing {
  return {
    text: ops.map(([, text]) => text).join('\n'),
    lines: ops.map(() => 0),
    ops: ops.map(([op]) => op),
  };
}

describe('differences', () => {
  test.each([...Array(60).keys()])('the hunks transform one listing into the other (%i)', (seed) => {
    const below = random(seed);
    const a: [number, string][] = [...Array(1 + below(20)).keys()].map((op) => [op, `op ${below(6)}`]);
    const b = a
      .filter(() => below(5) > 0)
      .map(([op, text]): [number, string] => [op, below(4) ? text : `op ${below(6)}`]);
    for (let i = below(4); i > 0; i--) {
      b.splice(below(b.length + 1), 0, [100 + i, `op ${below(6)}`]);
    }
    for (let i = below(3); i > 0 && b.length; i--) {
      b.splice(below(b.length), 0, ...b.splice(below(b.length), 1));
    }
    const found = difference(listingOf(a), listingOf(b));
    const [one, two] = [a.map(([, t]) => t), b.map(([, t]) => t)];
    expect(patched(one, two, found.hunks)).toEqual(two);
    let [i, j] = [0, 0];
    for (const hunk of found.hunks) {
      expect(hunk.fromA).toBeGreaterThanOrEqual(i);
      expect(hunk.fromB).toBeGreaterThanOrEqual(j);
      expect(hunk.toA - hunk.fromA + hunk.toB - hunk.fromB).toBeGreaterThan(0);
      [i, j] = [hunk.toA, hunk.toB];
    }
    const [had, has] = [new Map(a), new Map(b)];
    expect([...found.removed].sort()).toEqual([...had.keys()].filter((op) => !has.has(op)).sort());
    expect([...found.added].sort()).toEqual([...has.keys()].filter((op) => !had.has(op)).sort());
    expect([...found.changed].sort()).toEqual(
      [...has.keys()].filter((op) => had.has(op) && had.get(op) !== has.get(op)).sort(),
    );
    const still = b.map(([op]) => op).filter((op) => had.has(op) && !found.moved.has(op));
    expect(still).toEqual([...still].sort((x, y) => x - y)); // ops that did not move keep their order
  });

  test('a listing does not differ from itself', async () => {
    const doc = fixture('scale');
    const listing = (await new Store(doc, saved).listing(doc.views[1].stages![0].text!))!;
    expect(difference(listing, listing).hunks).toEqual([]);
    expect(difference(listing, listing, true).hunks).toEqual([]);
  });

  const text = (...lines: string[]): Listing => ({ text: lines.join('\n'), lines: lines.map(() => 0) });

  test('another name of the same layout is no difference; another layout with the same name is one', () => {
    const a = {
      text: '#a = <64: reg 1>\n#b = <32: lane 1>\n  %1 = load : #b\n  %2 = add : #a',
      lines: [0, 0, 1, 1],
      ops: [-1, -1, 1, 2],
    };
    const b = {
      text: '#a = <32: lane 1>\n#b = <64: reg 2>\n  %1 = load : #a\n  %2 = add : #b',
      lines: [0, 0, 1, 1],
      ops: [-1, -1, 1, 2],
    };
    const found = difference(a, b);
    expect([...found.changed]).toEqual([2]);
    expect(found.hunks.some(({ fromB, toB }) => fromB <= 2 && 2 < toB)).toBe(false);
  });

  test('a renaming of values is no difference between versions', () => {
    const a = text('%1 = load %0', '%2 = add %1, %1', 'store %0, %2');
    const b = text('%7 = load %3', '%9 = add %7, %7', 'store %3, %9');
    expect(difference(a, b, true).hunks).toEqual([]);
  });

  test('another operand is a difference between versions, on its line only', () => {
    const a = text('%1 = load %0', '%2 = load %0', '%3 = add %1, %1', 'store %0, %3');
    const b = text('%5 = load %4', '%6 = load %4', '%7 = add %5, %6', 'store %4, %7');
    expect(difference(a, b, true).hunks).toEqual([{ fromA: 2, toA: 3, fromB: 2, toB: 3 }]);
  });

  test('a changed line after a new line is paired with its counterpart', () => {
    const a = text('x = load(a)', 'store(out + at, 2.0 * x, mask=inside)');
    const b = text('x = load(a)', 'y = x + 1.0', 'store(out + at, 3.0 * y, mask=inside)');
    expect(difference(a, b, true).hunks).toEqual([
      { fromA: 1, toA: 1, fromB: 1, toB: 2 },
      { fromA: 1, toA: 2, fromB: 2, toB: 3 },
    ]);
  });

  test('only the changed words of a line are marked', () => {
    const a = '%1 = add %0, %0 : f32';
    const b = '%1 = mul %0, %0 : f32';
    const found = changedWords([{ fromA: 0, toA: 1, fromB: 0, toB: 1 }], a, b);
    expect(found).toEqual({ a: [{ line: 0, from: 5, to: 8 }], b: [{ line: 0, from: 5, to: 8 }] });
    expect(changedWords([{ fromA: 0, toA: 0, fromB: 0, toB: 1 }], a, b)).toEqual({ a: [], b: [] });
  });

  test('other registers and reuse flags of machine code are not marked', () => {
    const marked = (name: 'sass' | 'ptx' | 'llvm', a: string, b: string): string[] =>
      changedWords([{ fromA: 0, toA: 1, fromB: 0, toB: 1 }], a, b, name).b.map((w) => b.slice(w.from, w.to));
    expect(marked('sass', 'LOP3 R13, RZ.reuse, 0x5, R12.reuse', 'LOP3 R4, RZ, 0x7, R16')).toEqual(['0x7']);
    expect(marked('sass', 'STG [R2.64], R4', 'STG [UR2.64], R5')).toEqual(['UR2.64']);
    expect(marked('sass', 'MOV R4, RZ', 'MOV R4, R5')).toEqual(['R5']);
    expect(marked('ptx', 'mov.u32 %r1, %tid.x', 'mov.u32 %r7, %tid.y')).toEqual(['%tid.y']);
    expect(marked('llvm', '%3 = add i32 %x, 5', '%sum = sub i32 %y, 5')).toEqual(['sub']);
  });
});

// ---- explanations ------------------------------------------------------------------------------------------------------------

describe('explanations of instructions', () => {
  test('there are at least 200, and each is a short phrase', () => {
    expect(Object.keys(PTX).length).toBeGreaterThanOrEqual(120);
    expect(Object.keys(SASS).length).toBeGreaterThanOrEqual(80);
    for (const words of [...Object.values(PTX), ...Object.values(SASS)]) {
      expect(words.length).toBeGreaterThan(5);
      expect(words.length).toBeLessThan(120);
    }
  });

  test.each([
    [
      'ptx',
      '\t@%p1 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];',
      'ld.global.v4.b32',
      /device memory.*four elements/,
    ],
    [
      'ptx',
      '\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1};',
      'mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32',
      /tensor core/,
    ],
    [
      'ptx',
      '\t{ .reg .pred on; setp.eq.s32 on, 0, 0; wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1};',
      'wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16',
      /four warps start a matrix product/,
    ],
    ['ptx', '\tbar.sync \t0;', 'bar.sync', /waits until all threads of the CTA arrive/],
    ['sass', '    @!P0 EXIT', 'EXIT', /ends the thread/],
    ['sass', '    LDG.E.128 R4, desc[UR4][R2.64]', 'LDG.E.128', /device memory/],
    ['asm', '\tvfmadd231ps\t%ymm1, %ymm2, %ymm3', 'vfmadd231ps', /rounded once \(8 fp32/],
    ['asm', '\tvaddss\t%xmm1, %xmm2, %xmm3', 'vaddss', /\(scalar\)/],
    ['asm', '\tfmla\tv3.4s, v24.4s, v27.s[0]', 'fmla', /rounded once \(4 elements of 32 bits\)/],
    ['asm', '\tfadd\td0, d1, d2', 'fadd', /^sums of floats$/],
    ['asm', '\tb.ne\t.LBB0_3', 'b', /jumps/],
    ['asm', '\tjne\t.LBB0_3', 'jne', /jumps if not equal/],
  ])('%s: %s', (language, line, opcode, words) => {
    const found = explain(language, line)!;
    expect(found.opcode).toBe(opcode);
    expect(line.slice(found.from)).toMatch(new RegExp(`^${opcode.replace(/[.]/g, '\\.')}`));
    expect(found.text).toMatch(words);
  });

  test.each([
    ['ptx', '$L__BB0_2:'],
    ['ptx', '// comment'],
    ['ptx', '\t.reg .b32 \t%r<4>;'],
    ['sass', '.L_x_2:'],
    ['asm', 'run:'],
    ['asm', '\t.long\t3'],
    ['ir', '%1 = add %0, %0'],
  ])('there is no explanation for %s: %s', (language, line) => {
    expect(explain(language, line)).toBeNull();
  });

  test('most instructions of a real kernel are explained', async () => {
    const doc = fixture('scale');
    const [cpu, gpu] = doc.views;
    for (const [view, key, language, pattern] of [
      [gpu, 'ptx', 'ptx', /^\s+(@!?%\w+\s+)?[a-z][\w.]*\s/],
      [gpu, 'sass', 'sass', /^\s+(@!?\w+\s+)?[A-Z]/],
      [cpu, 'assembly', 'asm', /^\t[a-z]/],
    ] as const) {
      const listing = (await new Store(doc, saved).listing(view.code![key]!))!;
      const lines = listing.text.split('\n').filter((line) => pattern.test(line));
      const known = lines.filter((line) => explain(language, line));
      expect(lines.length, key).toBeGreaterThan(10);
      expect(known.length / lines.length, key).toBeGreaterThan(key === 'assembly' ? 0.8 : 0.95);
    }
  });
});
