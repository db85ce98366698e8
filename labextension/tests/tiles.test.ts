/** Tests of the Tiles view with the cards of real kernels (written by fixtures/make_tiles.py). */

import { gunzipSync, gzipSync } from 'node:zlib';
import { beforeEach, expect, test, vi } from 'vitest';

import type { Host } from '../src/core/host';
import { positions } from '../src/core/plot/programs';
import type { Document } from '../src/core/schema';
import { Store } from '../src/core/store';
import {
  bankOf,
  boxOf,
  combine,
  elements,
  isOn,
  locate,
  offsetOf,
  programIds,
  places,
  programName,
  sectors,
  sentences,
  startSentence,
  unravel,
  verdict,
  type Tiles,
  type TileOp,
} from '../src/core/tiles';
import { tiles } from '../src/core/views/tiles';
import { PATIENT } from './fixtures';
import fixtures from './fixtures/tiles.json';

const FIXTURES = fixtures as unknown as Record<string, Document>;

function facts(kernel: string): Tiles {
  const packed = FIXTURES[kernel].tiles!.packed!;
  return JSON.parse(gunzipSync(Buffer.from(packed, 'base64')).toString()) as Tiles;
}

function changed(kernel: string, change: (found: Tiles) => void): Document {
  const doc = structuredClone(FIXTURES[kernel]);
  const found = facts(kernel);
  change(found);
  doc.tiles!.packed = gzipSync(JSON.stringify(found)).toString('base64');
  return doc;
}

function opOf(found: Tiles, name: string, what: string): TileOp {
  return found.ops.find((op) => op.name === name && op.what === what)!;
}

interface Opened {
  panel: HTMLElement;
  store: Store;
  row(text: string): HTMLElement;
  text(selector: string): string;
}

async function opened(doc: Document, host: Partial<Host> = {}): Promise<Opened> {
  const panel = document.body.appendChild(document.createElement('div'));
  const store = new Store(doc, { state: host.request ? 'live' : 'saved', ...host });
  const view = tiles.mount(panel, store);
  store.subscribe((change) => view.update(change));
  await vi.waitFor(() => expect(panel.querySelector('[data-op]')).not.toBeNull(), PATIENT);
  return {
    panel,
    store,
    row: (text) =>
      [...panel.querySelectorAll<HTMLElement>('[data-op]')].find((r) => r.textContent?.includes(text))!,
    text: (selector) => panel.querySelector(selector)?.textContent ?? '',
  };
}

function cells(panel: HTMLElement): string[] {
  return [...panel.querySelectorAll('.bnb-sheet .bnb-cell-text, .bnb-sheet .bnb-off-text')].map(
    (t) => t.textContent ?? '',
  );
}

beforeEach(() => document.body.replaceChildren());

test('a layout covers every element, and each place holds the XOR of its bases', () => {
  for (const kernel of Object.keys(FIXTURES)) {
    for (const layout of facts(kernel).layouts) {
      const [shape, reg, lane, warp] = layout;
      const found = places(layout);
      const size = shape.reduce((a, b) => a * b, 1);
      expect(found.holders.reduce((a, b) => a + b, 0)).toBe(1 << (reg.length + lane.length + warp.length));
      for (let i = 0; i < size; i++) {
        const index =
          combine(warp, found.warp[i]) ^ combine(lane, found.lane[i]) ^ combine(reg, found.register[i]);
        expect(index).toBe(i);
      }
    }
  }
});

test('the page and the compiler count the same sectors if each is requested once', () => {
  for (const [kernel, name, what] of [
    ['matmul_kernel', 'load', 'a'],
    ['matmul_kernel', 'store', 'c'],
    ['strided', 'load', 'x'],
  ]) {
    const found = facts(kernel);
    const op = opOf(found, name, what);
    const access = found.programs['0'][op.op];
    expect(new Set(sectors(op, access)).size).toBe(access.traffic![1]);
  }
});

test('elements are located in arrays with any unambiguous strides', () => {
  const array = { shape: [4, 5, 6], strides: [30, 6, 1] };
  expect(locate(array, 2 * 30 + 3 * 6 + 4)).toEqual([2, 3, 4]);
  expect(locate({ shape: [4, 5], strides: [1, 4] }, 4 * 3 + 2)).toEqual([2, 3]);
  expect(locate({ shape: [1, 5], strides: [99, 1] }, 3)).toEqual([0, 3]);
  expect(locate({ shape: [4, 5], strides: [10, 2] }, 3)).toBeNull();
  expect(locate(array, -1)).toBeNull();
  expect(locate(array, 500)).toBeNull();
  expect(locate(undefined, 0)).toBeNull();
});

test('offsets and masks are decoded from steps, tables, lists, boxes and bits', () => {
  const shape = [2, 4];
  expect(unravel(6, shape)).toEqual([1, 2]);
  expect(offsetOf({ base: 100, steps: [10, 1] }, shape, 6)).toBe(112);
  expect(
    offsetOf(
      {
        base: 100,
        tables: [
          [0, 7],
          [0, 3, 1, 2],
        ],
      },
      shape,
      6,
    ),
  ).toBe(108);
  expect(offsetOf({ list: [0, 1, 2, 3, 4, 5, 66, 7] }, shape, 6)).toBe(66);
  expect(offsetOf({ why: 'loaded' }, shape, 6)).toBeNull();
  expect(
    isOn(
      {
        box: [
          [0, 2],
          [0, 2],
        ],
      },
      shape,
      6,
    ),
  ).toBe(false);
  expect(
    isOn(
      {
        box: [
          [1, 2],
          [2, 3],
        ],
      },
      shape,
      6,
    ),
  ).toBe(true);
  expect(isOn({ bits: '40' }, shape, 6)).toBe(true);
  expect(isOn({ bits: 'bf' }, shape, 6)).toBe(false);
  expect(isOn({}, shape, 6)).toBe(true);
});

test('a bank is the word index of an element in its buffer modulo 32', () => {
  const op = { bytes: 4, shared: { basis: [1, 2, 4, 8, 16, 33, 66, 128] } } as unknown as TileOp;
  expect([0, 5, 31, 32, 64].map((i) => bankOf(op, i))).toEqual([0, 5, 31, 1, 2]);
});

test('the verdicts are short descriptions with numbers', () => {
  const found = facts('strided');
  const load = opOf(found, 'load', 'x');
  const access = found.programs['0'][load.op];
  expect(verdict(load, access)).toBe('32 sectors per request, ideal 4');
  expect(sentences(load, access)[0]).toBe(
    '32 sectors per request, ideal 4: 88 % of the transferred bytes are unused.',
  );
  const matrix = facts('matmul_kernel');
  const shared = opOf(matrix, 'local_load', 'x');
  expect(verdict(shared, undefined)).toBe('no bank conflict');
  expect(verdict({ ...shared, shared: { ...shared.shared!, ways: 2, wavefronts: 16 } }, undefined)).toBe(
    '2-way bank conflict',
  );
  expect(sentences(opOf(matrix, 'load', 'a'), matrix.programs['0'][74])[2]).toBe(
    'Vector width 8: each lane accesses 8 × fp16 (128 bits) per instruction.',
  );
  const bins = facts('histogram');
  const [, loaded, known] = bins.ops;
  expect(sentences(loaded, bins.programs['0'][loaded.op])[0]).toBe(
    'Unknown: the addresses depend on loaded data.',
  );
  expect(sentences(known, bins.programs['0'][known.op]).join(' ')).toContain(
    'Up to 32 lanes of a request update the same element',
  );
  expect(verdict(known, undefined)).toBe('not executed');
});

test('the view lists the accesses with their lines, and shows the tile as numbers', async () => {
  const { panel, row, text } = await opened(FIXTURES.matmul_kernel);
  expect(row('load a').textContent).toContain('line 31');
  expect(row('dot x × y').textContent).toContain('m16n8k16');
  expect(text('.bnb-notes')).toContain('16 sectors per request, ideal 16');
  expect(new Set(cells(panel))).toContain('0');
  const quantity = panel.querySelector<HTMLSelectElement>('[data-tool="quantity"]')!;
  expect([...quantity.options].map((o) => o.value)).toEqual(['warp', 'lane', 'register', 'sector']);
  quantity.value = 'register';
  quantity.dispatchEvent(new Event('change'));
  expect(cells(panel).slice(0, 9)).toEqual(['0', '1', '2', '3', '4', '5', '6', '7', '0']);
});

test('a dot shows its operands and its result, and a shared-memory access shows its banks', async () => {
  const { panel, row } = await opened(FIXTURES.matmul_kernel);
  row('dot x × y').click();
  const side = panel.querySelector<HTMLSelectElement>('[data-tool="side"]')!;
  expect([...side.options].map((o) => o.text)).toEqual(['result', 'left operand', 'right operand']);
  side.value = '0';
  side.dispatchEvent(new Event('change'));
  panel.querySelector<HTMLSelectElement>('[data-tool="quantity"]')!.value = 'lane';
  panel.querySelector('[data-tool="quantity"]')!.dispatchEvent(new Event('change'));
  expect(cells(panel).slice(0, 8)).toEqual(['0', '0', '1', '1', '2', '2', '3', '3']);
  row('shared load x').click();
  const quantity = panel.querySelector<HTMLSelectElement>('[data-tool="quantity"]')!;
  expect([...quantity.options].map((o) => o.value)).toContain('bank');
});

/** A TMA copy with two instructions, whose last rows are out of bounds. */
const BOX: TileOp = {
  op: 312, line: 3, name: 'copy_bulk', what: 'a', dtype: 'fp16', bytes: 2, shape: [128, 64], layout: -1, vector: 1,
  bulk: { tile: [64, 64], swizzle: 128, basis: [1, 2, 4, 8, 16, 32, 72, 144, 288, 512, 1024, 2048, 4096] },
}; // prettier-ignore

test('a TMA copy shows its instructions, bytes, out-of-bounds elements and swizzle', () => {
  const access = { array: 'a', base: 0, steps: [96, 1], box: [[0, 100], [0, 64]] as [number, number][] }; // prettier-ignore
  expect(verdict(BOX, access)).toBe('2 boxes of 64 × 64, 16 KiB');
  const texts = sentences(BOX, access);
  expect(texts[0]).toContain('TMA copies from a: 2 boxes of 64 × 64, 16 KiB. No thread holds the tile.');
  expect(texts[1]).toBe(`${28 * 64} of 8192 elements are out of bounds: TMA fills them with zeros.`);
  expect(texts[2]).toContain('p xor (r mod 8)');
  expect([boxOf(BOX, 0), boxOf(BOX, 63 * 64 + 5), boxOf(BOX, 64 * 64)]).toEqual([0, 0, 1]);
  // The swizzle spreads the same column of 8 rows over 8 times 4 different banks.
  expect(new Set([...Array(8).keys()].map((row) => bankOf(BOX, row * 64))).size).toBe(8);
});

test('the view draws a TMA copy without threads: by instruction, bank or sector', async () => {
  const doc = changed('matmul_kernel', (found) => {
    found.ops.unshift(BOX);
    found.programs['0']['312'] = { array: 'a', base: 0, steps: [96, 1] };
  });
  const { panel } = await opened(doc);
  const quantity = panel.querySelector<HTMLSelectElement>('[data-tool=quantity]')!;
  expect([...quantity.options].map((o) => o.value)).toEqual(['box', 'bank', 'sector']);
  expect(panel.querySelector('[data-op="0"]')!.textContent).toContain('TMA copy a');
  expect(panel.querySelector('.bnb-details')!.textContent).toContain('box 0, bank 0');
});

test('hovering over an access highlights its line in the code, and a click pins it', async () => {
  const linked: (readonly number[] | null)[] = [];
  const { row, store } = await opened(FIXTURES.matmul_kernel, {
    highlightSource: (lines) => linked.push(lines),
  });
  row('load b').dispatchEvent(new Event('pointerover', { bubbles: true }));
  expect(store.hovered).toEqual({ lines: [32], op: 80, from: 'tiles' });
  expect(linked.at(-1)).toEqual([32]);
  row('store c').click();
  expect(store.pinned).toEqual({ lines: [39], op: 121, from: 'tiles' });
  store.hover({ lines: [31], op: null, from: 'source' });
  expect(row('load a').classList).toContain('bnb-highlight');
  expect(row('store c').classList).not.toContain('bnb-highlight');
});

test('in the code of another target only the line is highlighted', async () => {
  const { row, store } = await opened(FIXTURES.matmul_kernel);
  store.selectView(0);
  row('load b').click();
  expect(store.pinned).toEqual({ lines: [32], op: null, from: 'tiles' });
});

test('without a kernel the view steps through the saved programs and lists them', async () => {
  const { panel, text } = await opened(FIXTURES.matmul_kernel);
  const press = (key: string): void => {
    panel.querySelector<HTMLElement>(`[data-tool="${key}"]`)!.click();
  };
  expect(text('.bnb-program-name')).toBe('program 0 of 16');
  ['next', 'next', 'next', 'next'].forEach(press);
  expect(text('.bnb-program-name')).toBe('program 15 of 16');
  expect(panel.textContent).toContain('Saved programs: 0, 1, 2, 15.');
  press('previous');
  expect(text('.bnb-program-name')).toBe('program 2 of 16');
  expect(panel.querySelector('.bnb-program-now')!.getAttribute('data-program')).toBe('2');
});

test('a live kernel supplies each missing program and iteration once', async () => {
  const request = vi.fn(async (what: string, content: Record<string, unknown>) => {
    expect(what).toBe('tiles');
    const [, access] = Object.entries(facts('matmul_kernel').programs['0'])[0];
    return {
      accesses: { 74: { ...access, base: 1000 * Number(content.program) + Number(content.iteration) } },
    };
  });
  const { panel, text } = await opened(FIXTURES.matmul_kernel, { request });
  const slider = (): HTMLInputElement => panel.querySelector('[data-tool="program"]')!;
  expect(slider().max).toBe('15');
  slider().value = '7';
  slider().dispatchEvent(new Event('input'));
  await vi.waitFor(() => expect(text('.bnb-details')).toContain('byte 14000'), PATIENT);
  expect(text('.bnb-program-name')).toBe('program 7 of 16');
  expect(slider().getAttribute('aria-valuetext')).toBe('program 7 of 16');
  const iteration = panel.querySelector<HTMLInputElement>('[data-tool="iteration"]')!;
  iteration.value = '3';
  iteration.dispatchEvent(new Event('change'));
  await vi.waitFor(() => expect(text('.bnb-details')).toContain('byte 14006'), PATIENT);
  slider().value = '1';
  slider().dispatchEvent(new Event('input'));
  slider().value = '7';
  slider().dispatchEvent(new Event('input'));
  expect(text('.bnb-details')).toContain('byte 14000');
  expect(request.mock.calls.map(([, content]) => content)).toEqual([
    { program: 7, iteration: 0 },
    { program: 7, iteration: 3 },
  ]);
});

test('the view shows the error of a failed request', async () => {
  const request = vi.fn().mockRejectedValue(new Error('The kernel has stopped.'));
  const { panel } = await opened(FIXTURES.matmul_kernel, { request });
  const slider = panel.querySelector<HTMLInputElement>('[data-tool="program"]')!;
  slider.value = '9';
  slider.dispatchEvent(new Event('input'));
  await vi.waitFor(() => expect(panel.textContent).toContain('The kernel has stopped.'), PATIENT);
});

test('the arrow keys step through the elements, and the view describes each', async () => {
  const { panel, text } = await opened(FIXTURES.matmul_kernel);
  const sheet = panel.querySelector<HTMLElement>('.bnb-sheet-box')!;
  const press = (key: string): boolean =>
    sheet.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
  expect(press('ArrowDown')).toBe(false);
  press('End');
  expect(text('.bnb-main > div > .bnb-details')).toBe(
    '[1, 31]: a[1, 31], byte 318, warp 0, lane 7, register 7',
  );
  press('ArrowRight');
  expect(text('.bnb-main > div > .bnb-details')).toContain('[1, 31]');
});

test('a row of the tile is available as a table', async () => {
  const { panel } = await opened(FIXTURES.matmul_kernel);
  const table = panel.querySelector('details')!;
  table.open = true;
  table.dispatchEvent(new Event('toggle'));
  const rows = [...table.querySelectorAll('tbody tr')].map((r) => [...r.children].map((c) => c.textContent));
  expect(rows).toHaveLength(32);
  expect(rows[9]).toEqual(['[0, 9]', 'a[0, 9], byte 18', '0', '1', '1', '']);
});

test('the map numbers the programs in launch order, here in groups of rows', async () => {
  const map = facts('matmul_kernel').map!;
  expect(positions(map).slice(0, 5)).toEqual([
    { row: 0, column: 0 },
    { row: 1, column: 0 },
    { row: 0, column: 1 },
    { row: 1, column: 1 },
    { row: 0, column: 2 },
  ]);
  const { panel, text } = await opened(FIXTURES.matmul_kernel);
  const drawing = panel.querySelector('.bnb-programs')!;
  expect(drawing.getAttribute('aria-label')).toContain('0 at c[0, 0]; 1 at c[32, 0]; 2 at c[0, 32]');
  expect([...drawing.querySelectorAll('text')].map((t) => t.textContent)).toHaveLength(16);
  drawing.querySelector('[data-program="2"]')!.dispatchEvent(new Event('click'));
  expect(text('.bnb-program-name')).toBe('program 2 of 16');
});

test('masked-off elements are marked', async () => {
  const { panel, row } = await opened(
    changed('strided', (found) => {
      found.programs['0'][found.ops[0].op].box = [[0, 4]];
    }),
  );
  row('load x').click();
  expect(cells(panel).slice(3, 6)).toEqual(['0', '·', '·']);
  expect(panel.textContent).toContain('124 of 128 elements are masked off.');
});

test('hostile names are not markup', async () => {
  const hostile = '<img src=x onerror="window.broken = true"><script>window.broken = true</script>';
  const doc = changed('matmul_kernel', (found) => {
    found.arrays[hostile] = found.arrays.a;
    found.map!.array = hostile;
    for (const op of found.ops) {
      op.what = hostile;
    }
    for (const accesses of Object.values(found.programs)) {
      for (const access of Object.values(accesses)) {
        access.array = hostile;
      }
    }
    found.programs['0'][found.ops[1].op] = { why: hostile };
  });
  const { panel } = await opened(doc);
  panel.querySelector('details')!.open = true;
  panel.querySelector('details')!.dispatchEvent(new Event('toggle'));
  for (const row of panel.querySelectorAll<HTMLElement>('[data-op]')) {
    row.click();
  }
  expect(panel.textContent).toContain(hostile);
  expect(panel.querySelector('img, script')).toBeNull();
  expect('broken' in window).toBe(false);
});

test('a new document replaces the old one completely, also if it has no tiles', async () => {
  const { panel, store } = await opened(FIXTURES.matmul_kernel);
  store.update({ ...structuredClone(FIXTURES.strided), tiles: { why: 'It was not launched.' } });
  await vi.waitFor(() => expect(panel.textContent).toContain('It was not launched.'), PATIENT);
  expect(panel.querySelector('[data-op]')).toBeNull();
  store.update({ ...structuredClone(FIXTURES.strided), tiles: { packed: 'no gzip' } });
  await vi.waitFor(() => expect(panel.textContent).toContain('cannot be read'), PATIENT);
  store.update(FIXTURES.strided);
  await vi.waitFor(() => expect(panel.textContent).toContain('32 sectors per request, ideal 4'), PATIENT);
});

test('the tab says why it is empty', () => {
  const doc = structuredClone(FIXTURES.strided);
  const store = new Store(doc, { state: 'saved' });
  expect(tiles.empty(doc, store)).toBeNull();
  doc.tiles = { why: 'Only code for a GPU has warps.' };
  expect(tiles.empty(doc, store)).toBe('Only code for a GPU has warps.');
  delete doc.tiles;
  expect(tiles.empty(doc, store)).toContain('does not contain the accesses');
});

test('programs that launch in groups of columns keep their ids', () => {
  const begun = [...Array(10).keys()].map((number) => programIds(number, [3, 3, 2], 2).join());
  expect(begun).toEqual([
    '0,0,0',
    '1,0,0',
    '0,1,0',
    '1,1,0',
    '0,2,0',
    '1,2,0',
    '2,0,0',
    '2,1,0',
    '2,2,0',
    '0,0,1',
  ]);
  expect(programName(2, [3, 3, 1])).toBe('program 2 of 9 (2, 0)');
  expect(programName(2, [3, 3, 1], 2)).toBe('program 2 of 9 (0, 1)');
});

test('an access says what keeps it narrow, and where its array starts', async () => {
  const doc = changed('strided', (found) => {
    const op = found.ops.find(({ name }) => name === 'load')!;
    op.limits = ['the mask may change after 1 element', 'the stride is not known to be 1'];
    found.arrays[op.what].start = 4;
  });
  const { panel } = await opened(doc);
  const text = panel.querySelector('.bnb-notes')!.textContent;
  expect(text).toContain(
    'Not wider: the mask may change after 1 element; and the stride is not known to be 1.',
  );
  expect(text).toMatch(
    /The launch ran on the CPU\. The figures assume .*; \w+ then starts 4 bytes after a multiple of 128 bytes\./,
  );
});

test('after a launch on a GPU the array starts where its address says', () => {
  const found = facts('strided');
  const op = found.ops.find(({ name }) => name === 'load')!;
  const access = found.programs['0'][op.op];
  found.addresses = true;
  expect(startSentence(found, access)).toBe(`In this launch, ${op.what} starts at a multiple of 128 bytes.`);
  found.arrays[op.what].start = 36;
  expect(startSentence(found, access)).toBe(
    `In this launch, ${op.what} starts 36 bytes after a multiple of 128 bytes.`,
  );
  const dense = {
    array: op.what,
    base: 0,
    steps: op.shape.map((_, axis) => elements(op.shape.slice(axis + 1))),
  };
  expect(Math.max(...sectors(op, dense, 4))).toBe(Math.max(...sectors(op, dense)) + 1);
});
