import { describe, expect, test, vi } from 'vitest';

import { blankSpaces } from '../src/core/cm/alignment';
import { layoutPicture } from '../src/core/cm/ir_docs';
import { COLOURS, colourOf } from '../src/core/cm/line_colours';
import { splitTable, withRelated } from '../src/core/cm/related_ops';
import { explainIr, layoutInWords, parseLayout } from '../src/core/explain/ir';
import { difference } from '../src/core/hunks';
import { origins } from '../src/core/origins';
import type { ComparedSide, Listing, Stage } from '../src/core/schema';
import { sidesTable } from '../src/core/views/compare';
import { lifeOf } from '../src/core/views/op_life';
import { fixture, saved, shown, until } from './fixtures';

const text = (element: Element): string => element.textContent ?? '';
const listing = (rows: [string, number][]): Listing => ({
  text: rows.map(([line]) => line).join('\n'),
  lines: rows.map(() => 0),
  ops: rows.map(([, op]) => op),
});
const stage = (name: string, more: Partial<Stage>): Stage => ({
  name,
  title: '',
  optional: false,
  skipped: false,
  changed: true,
  milliseconds: 0,
  ops: 0,
  delta: 0,
  text: null,
  notes: [],
  made: [],
  moved: [],
  retyped: [],
  deleted: [],
  origin: {},
  ...more,
});
const STAGES = [
  stage('parse', { made: [1, 2] }),
  stage('coalesce', { retyped: [1] }),
  stage('pipelining', { made: [7, 8, 9], deleted: [1], origin: { 7: [1], 8: [1], 9: [8] } }),
  stage('barriers', { moved: [8] }),
];

describe('ops that come from others', () => {
  test('origins lead through all stages between two', () => {
    const found = origins([...STAGES, stage('last', { origin: { 12: [9] } })], 0, 4);
    expect(found.get(12)).toEqual([1]);
  });

  test('a copy at the depth of the removed op stands beside it, and the others are copies', () => {
    const before = listing([
      ['for %i = 0 to 4 step 1 {', 5],
      ['  %1 = splat %p : tile<8xi32>', 1],
      ['}', -1],
    ]);
    const after = listing([
      ['%7 = splat %q : tile<8xi32>', 7],
      ['for %i = 0 to 4 step 1 {', 5],
      ['  %8 = splat %p : tile<8xi32>', 8],
      ['}', -1],
    ]);
    const from = new Map([
      [7, [1]],
      [8, [1]],
    ]);
    const found = difference(before, after, false, { origins: from });
    expect([...found.copies]).toEqual([[7, 1]]);
    expect(found.hunks).toEqual([
      { fromA: 0, toA: 0, fromB: 0, toB: 1 },
      { fromA: 1, toA: 2, fromB: 2, toB: 3 },
    ]);
    expect([...found.removed]).toEqual([]);
    const related = withRelated({ lines: [], op: 1, from: 'a' }, found, from);
    expect(related?.ops).toEqual([1, 7, 8]);
  });

  test('lines that the kernel matched are not compared again', () => {
    const [a, b] = [
      listing([
        ['x', 1],
        ['y', 2],
      ]),
      listing([
        ['z', 3],
        ['w', 4],
        ['y', 5],
      ]),
    ];
    const found = difference(a, b, true, { matched: { same: [[1, 2, 1]], aligned: [[0, 1, 1]] } });
    expect(found.hunks).toEqual([
      { fromA: 0, toA: 0, fromB: 0, toB: 1 },
      { fromA: 0, toA: 1, fromB: 1, toB: 2 },
    ]);
    const lines = (from: number, to: number): number => 20 * (to - from);
    expect(blankSpaces(found.hunks, lines, lines)).toEqual([{ side: 'a', line: 0, height: 20 }]);
    const wrapped = (from: number, to: number): number => (from === 0 && to === 0 ? 0 : 60 * (to - from));
    expect(blankSpaces(found.hunks, wrapped, lines)).toEqual([{ side: 'a', line: 0, height: 20 }]);
  });

  test('a line that is wrapped on one side pushes the other side down, and gets no more space than it needs', () => {
    const hunks = [
      { fromA: 0, toA: 1, fromB: 0, toB: 1 },
      { fromA: 1, toA: 2, fromB: 1, toB: 2 },
      { fromA: 2, toA: 4, fromB: 2, toB: 3 },
      { fromA: 9, toA: 9, fromB: 8, toB: 12 },
    ];
    const heights = (all: readonly number[]) => (from: number, to: number) =>
      all.slice(from, to).reduce((sum, height) => sum + height, 0);
    const [a, b] = [heights([18, 54, 18, 18]), heights([36, 18, 18])];
    expect(blankSpaces(hunks, a, b)).toEqual([
      { side: 'a', line: 1, height: 18 },
      { side: 'b', line: 2, height: 36 },
    ]);
  });

  test('the table of layouts is folded, with the lines and ops that belong to the rest', () => {
    const whole = listing([
      ['#a = <8: reg 1>', -1],
      ['', -1],
      ['func', -1],
      ['%0 = x', 4],
    ]);
    const { listing: rest, table } = splitTable(whole);
    expect(table).toEqual(['#a = <8: reg 1>']);
    expect(rest.text).toBe('func\n%0 = x');
    expect(rest.ops).toEqual([-1, 4]);
  });
});

describe('the life of an op', () => {
  test('leads back to the front end and forward to its successors', () => {
    const events = lifeOf(STAGES, 8).map(({ stage, sign, op }) => [stage, sign, op]);
    expect(events).toEqual([
      [0, '●', 1],
      [1, '◇', 1],
      [2, '●', 8],
      [3, '↕', 8],
    ]);
    const forward = lifeOf(STAGES, 1).map(({ stage, text }) => [stage, text]);
    expect(forward).toEqual([
      [0, 'made by parse'],
      [1, 'retyped'],
      [2, 'replaced by op 7, 8'],
      [3, 'moved'],
    ]);
  });

  test('is a strip in the Passes view, and a click shows the pass', async () => {
    const { open } = shown(fixture('scale'));
    const panel = open('passes');
    const rows = [...panel.querySelectorAll<HTMLElement>('.bnb-stage')];
    rows.find((one) => text(one).startsWith('coalesce'))!.click();
    (await until(() => panel.querySelector<HTMLElement>('.bnb-sentence')))!.click();
    const first = panel.querySelector<HTMLElement>('.bnb-life-cell')!;
    expect(text(first)).toContain('parse: made by parse');
    await until(() => text(panel.querySelector('.bnb-life')!).includes('of line'));
    first.click();
    expect(text(panel.querySelector('.bnb-stage[aria-selected=true]')!)).toContain('parse');
  });
});

describe('sentences', () => {
  test('those of a saved card are shown for a pass, and a click selects their ops', async () => {
    const { open } = shown(fixture('scale'));
    const panel = open('passes');
    const row = [...panel.querySelectorAll<HTMLElement>('.bnb-stage')].find((one) =>
      text(one).startsWith('coalesce'),
    )!;
    row.click();
    const found = await until(() => panel.querySelector<HTMLElement>('.bnb-sentence'));
    expect(text(panel.querySelector('.bnb-changes')!)).toContain('load accesses');
    found!.click();
    expect(text(panel.querySelector('.bnb-details')!)).toContain('op ');
  });

  test('a live kernel makes those of any two passes', async () => {
    const request = vi.fn((_what: string, _content: Record<string, unknown>) =>
      Promise.resolve({
        sentences: [
          { text: '2 loads became `copy_async`', weight: 100, before: [1], after: [2], lines: [3] },
        ],
      } as unknown),
    );
    const doc = fixture('scale');
    delete doc.deferred;
    const { open } = shown(doc, { ...saved, state: 'live', request });
    const panel = open('passes');
    const compare = panel.querySelector<HTMLSelectElement>('[aria-label="Compare with"]')!;
    const rows = [...panel.querySelectorAll<HTMLElement>('.bnb-stage')];
    rows[rows.length - 1].click();
    compare.value = '0';
    compare.dispatchEvent(new Event('change'));
    await until(() => text(panel).includes('2 loads became copy_async'));
    const asked = request.mock.calls.filter(([what]) => what === 'changes');
    expect(asked.map(([, content]) => content)).toContainEqual({ view: 1, a: 0, b: rows.length - 1 });
  });
});

describe('help on the IR', () => {
  const LAYOUT = '<64x32: reg 1,2,4,1024 lane 8,16,32,64,128 warp 256,512>';
  const line = '    %ta = load %1, %72 {vec=8} : tile<64x32xf16, #i>  // 74';
  const at = (word: string): ReturnType<typeof explainIr> =>
    explainIr(line, line.indexOf(word) + 1, [`#i = ${LAYOUT}`]);

  test('explains the op, the attribute, the type and the layout at the pointer, but no value and no comment', () => {
    expect(at('load')?.text).toContain('Loads elements from memory');
    expect(at('vec')?.text).toContain('One instruction accesses');
    expect(at('tile')?.text).toContain('A block of elements');
    expect(at('#i')?.text).toContain('Each thread holds 16 elements, 8 of them successive.');
    expect(at('%ta')).toBeNull();
    expect(at('74')).toBeNull();
  });

  test('describes layouts in words, with what lanes and warps share', () => {
    expect(layoutInWords(LAYOUT)).toContain('The lanes of a warp hold 16 x 32 elements.');
    expect(layoutInWords(LAYOUT)).toContain('4 warps divide the tile.');
    const replicated = layoutInWords('<4: reg 1,2 lane 0,0,0,0,0 warp 0,0>');
    expect(replicated).toContain('32 lanes hold the same elements.');
    expect(replicated).toContain('4 warps: 1 divide the tile, and 4 hold the same elements.');
    expect(parseLayout('<64x32: shared 1,2>')).toBeNull();
  });

  test('draws a cell per element, in the colour of its warp', () => {
    const picture = layoutPicture(parseLayout('<4x8: reg 1 lane 2,4,8,0,0 warp 16>')!)!;
    const cells = [...picture.querySelectorAll('rect')];
    expect(cells.length).toBe(32);
    expect(cells.filter((cell) => cell.classList.contains('bnb-first-thread')).length).toBe(2);
    expect(cells.map((cell) => cell.classList[0])).toEqual([
      ...Array<string>(16).fill('bnb-warp-0'),
      ...Array<string>(16).fill('bnb-warp-1'),
    ]);
  });
});

describe('colours by source line', () => {
  test('neighbouring lines have different colours, and a line without source has none', () => {
    expect(colourOf(0)).toBe(-1);
    const colours = Array.from({ length: COLOURS }, (_, i) => colourOf(i + 1));
    expect(new Set(colours).size).toBe(COLOURS);
  });

  test('a switch colours all listings and their rulers', async () => {
    const { open } = shown(fixture('scale'));
    const panel = open('code');
    const toggle = [...panel.querySelectorAll('button')].find((one) => text(one) === 'Colour by line')!;
    toggle.click();
    await until(() => panel.querySelectorAll('.bnb-line-colour').length > 3);
    expect(panel.querySelectorAll('.bnb-ruler:not([hidden]) rect').length).toBeGreaterThan(3);
    toggle.click();
    expect(panel.querySelectorAll('.bnb-line-colour').length).toBe(0);
  });
});

test('a comparison marks facts that differ, and says that times come from separate runs', () => {
  const side = (label: string, median: number, registers: number): ComparedSide =>
    ({
      ...{ label, kernel: 'k', target: 'sm_80', constants: {}, options: {} },
      resources: { registers },
      time: { median, low: median, high: median, n: 30, cold: false, device: '' },
    }) as unknown as ComparedSide;
  const rows = [...sidesTable([side('a', 1, 18), side('b', 2, 28)]).querySelectorAll('tbody tr')];
  const marked = rows.filter((row) => row.classList.contains('bnb-differs'));
  expect(marked.map((row) => row.querySelector('th')!.textContent)).toEqual(['registers per thread']);
  expect(rows.map((row) => row.querySelector('th')!.textContent)).toContain('time (separate runs)');
});

test('a comparison names the device of each time, which may not be the target of the code', () => {
  const side = (device: string | null): ComparedSide =>
    ({
      ...{ label: 'a', kernel: 'k', target: 'sm_90a', constants: {}, options: {}, resources: {} },
      time: device === null ? null : { median: 1, low: 1, high: 1, n: 30, cold: false, device },
    }) as unknown as ComparedSide;
  const row = (...devices: (string | null)[]): string[] =>
    [...sidesTable(devices.map(side)).querySelectorAll('tbody tr')]
      .map((one) => [...one.children].map(text))
      .find(([title]) => title.startsWith('time'))!;
  const shown = '1 ms (median of 30, warm)';
  expect(row('CPU', 'CPU', null)).toEqual(['time on the CPU (separate runs)', shown, shown, 'not measured']);
  expect(row('CPU', 'sm_90a')).toEqual([
    'time (separate runs)',
    `on the CPU: ${shown}`,
    `on sm_90a: ${shown}`,
  ]);
});
