/** The views that teach, on the document of a real cell: scale, run with --learn --step 0,3 on 200 elements in blocks of 64. */

import { gzipSync } from 'node:zlib';

import { beforeAll, describe, expect, test, vi } from 'vitest';

import type { Host } from '../src/core/host';
import { LaunchPlayer } from '../src/core/launch_player';
import { PlaceState } from '../src/core/launch_place';
import { fit } from '../src/core/plot/canvas';
import { gridOf, numberText, tileIndex } from '../src/core/plot/tile_picture';
import { StepPlayer } from '../src/core/step_player';
import {
  bytesText,
  regionText,
  type FootprintFacts,
  type LaunchFacts,
  type StepFacts,
} from '../src/core/teaching';
import { footprint, launch, step } from '../src/core/teaching_checks';
import { Budget, inflate } from '../src/core/inflate';
import { describeCell, elementsOfCells } from '../src/core/views/footprint';
import { fixture, saved, shown, until } from './fixtures';

const doc = fixture('learn');
let facts: { launch: LaunchFacts; step: StepFacts; footprint: FootprintFacts };
const text = (element: Element | null): string => element?.textContent ?? '';
const click = (root: Element, name: string): void =>
  [...root.querySelectorAll<HTMLElement>('button')]
    .find((b) => (b.getAttribute('aria-label') ?? text(b)) === name)!
    .click();

beforeAll(async () => {
  HTMLCanvasElement.prototype.getContext = () => null; // jsdom draws nothing
  const read = (packed: string | undefined, check: typeof launch): Promise<unknown> =>
    inflate(packed!, new Budget(), check);
  facts = {
    launch: (await read(doc.teaching!.launch!.packed, launch)) as LaunchFacts,
    step: (await read(doc.teaching!.step!.packed, step)) as StepFacts,
    footprint: (await read(doc.teaching!.footprint!.packed, footprint)) as FootprintFacts,
  };
});

describe('the launch', () => {
  test('counts the bytes up to each program, and in the end those of the footprint', () => {
    const player = new LaunchPlayer(facts.launch, 'program');
    expect(player.count).toBe(4);
    expect(player.counted()).toEqual([256, 256, 256]);
    player.go(99);
    expect(player.at).toBe(3);
    expect(player.counted()).toEqual(facts.launch.totals);
    expect(facts.launch.totals).toEqual([800, 800, 800]);
  });

  test('steps by waves of the programs that run together', () => {
    const narrow = { ...facts.launch, machine: { chip: 'test', multiprocessors: 1, each: 3 } };
    const player = new LaunchPlayer(narrow, 'wave');
    expect(player.count).toBe(2);
    expect(player.span).toEqual([0, 2]);
    player.go(1);
    expect(player.span).toEqual([3, 3]);
    player.choose('iteration');
    expect(player.at).toBe(3);
  });

  test('finds the iteration of a program, or the last one before it', () => {
    const player = new LaunchPlayer(facts.launch, 'iteration');
    expect(player.find(2, 0)).toBe(2);
    expect(player.find(2, 7)).toBe(2);
    expect(player.find(9, 0)).toBeUndefined();
  });

  test('names the loop of an iteration if a program has several, and finds it by its line', () => {
    const one = (iteration: number, op: number): LaunchStep => [[0, 0], iteration, [4, 4, 0], [[op, 0]]];
    const twice = {
      ...facts.launch,
      ops: [[0, 'load', 4] as LaunchFacts['ops'][0], [0, 'load', 8] as LaunchFacts['ops'][0]],
      loops: [[3], [5, 7]],
      steps: [one(0, 0), one(1, 0), one(2, 0), one(3, 1), one(4, 1)],
    };
    const player = new LaunchPlayer(twice, 'iteration');
    expect(player.loopPlace(2)).toEqual({ iteration: 2, of: 3, loops: 'the loop in line 3' });
    expect(player.loopPlace(4)).toEqual({ iteration: 1, of: 2, loops: 'the loops in lines 5 and 7' });
    expect([player.lineOf(2), player.lineOf(4)]).toEqual([4, 8]);
    expect([player.find(0, 1), player.find(0, 1, 4), player.find(0, 1, 8), player.find(0, 9, 8)]).toEqual([
      1, 1, 4, 4,
    ]);
    const single = new LaunchPlayer({ ...twice, steps: twice.steps.slice(0, 3) }, 'iteration');
    expect(single.loopPlace(2)).toEqual({ iteration: 2, of: 3, loops: '' });
  });

  test('the view shows tiles, counters and waves, and the arrow keys step', async () => {
    const { open } = shown(fixture('learn'));
    const panel = open('launch');
    const where = panel.querySelector('[data-part=where]');
    await until(() => text(where).includes('program 0, number 1 of 4'));
    expect(text(where)).toContain('wave 1 of 1: 132 SMs (H100)');
    panel.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }));
    expect(text(where)).toContain('program 1');
    const tiles = [...panel.querySelectorAll('.bnb-launch-tiles code')].map(text);
    expect(tiles).toEqual(['load x[64:128]', 'store out[64:128]']);
    const counter = (key: string): string => text(panel.querySelector(`[data-counter=${key}] span`));
    expect([counter('loaded'), counter('first'), counter('stored')]).toEqual(['512 B', '512 B', '512 B']);
  });

  test('names rectangles of arrays of one, two and three axes', () => {
    const array = { name: 'a', dtype: 'fp32', bytes: 4, rows: 8, columns: 16, wrapped: false };
    expect(regionText({ ...array, shape: [8, 16] }, [0, 4, 8, 16])).toBe('a[0:4, 8:16]');
    expect(regionText({ ...array, shape: [128], wrapped: true }, [1, 2, 0, 16])).toBe('a[16:32]');
    expect(regionText({ ...array, shape: [2, 4, 16] }, [4, 6, 0, 16])).toBe('a[1, 0:2, 0:16]');
    expect(regionText({ ...array, shape: [2, 4, 16] }, [3, 6, 0, 16])).toBe('a[rows 3:6, 0:16]');
    expect([bytesText(640), bytesText(1536), bytesText(1 << 20)]).toEqual(['640 B', '1.5 KiB', '1 MiB']);
  });
});

describe('the steps', () => {
  test('a line is a step, and the second program is at the same line', () => {
    const player = new StepPlayer(facts.step);
    const lines = player.steps[0].map((one) => one.line);
    expect(lines).toEqual([...lines].sort((a, b) => a - b));
    player.go(2);
    expect(player.line(1)).toBe(player.line(0));
    expect(player.latest(0).size).toBe(3);
  });

  test('it runs to a breakpoint, in both directions', () => {
    const player = new StepPlayer(facts.step);
    const wanted = player.steps[0][2].line;
    player.breakpoints.add(wanted);
    player.run(1);
    expect(player.line()).toBe(wanted);
    player.run(1);
    expect(player.at).toBe(player.count - 1);
    player.run(-1);
    expect(player.line()).toBe(wanted);
  });

  test('values have the indices and numbers of the interpreter', () => {
    const [, events] = [0, facts.step.runs[1].events];
    const at = events.find(([, what, name]) => what === 'set' && name === 'at')!;
    const value = facts.step.values[at[4]];
    expect([...Array.from(gridOf(value)!.data)]).toEqual(Array.from({ length: 64 }, (_, i) => 192 + i));
    expect(tileIndex(value, 5)).toBe('5');
    const mask = facts.step.values[events.find(([, , name]) => name === 'inside')![4]];
    expect(mask.on).toBe(8);
    expect([numberText(mask, 1), numberText(mask, 0)]).toEqual(['true', 'false']);
    const sampled = { dtype: 'fp32', shape: [2, 8, 8], kind: 'f4', shown: [4, 4], every: [4, 2] } as const;
    expect(tileIndex({ ...sampled, shown: [4, 4], every: [4, 2], shape: [2, 8, 8] }, 9)).toBe('1, 0, 2');
  });

  test('the view shows values beside their lines, forwards and backwards', async () => {
    const { open } = shown(fixture('learn'));
    const panel = open('step');
    await until(() => panel.querySelector('.bnb-step-now'));
    const source = doc.source.text.split('\n');
    const line = (word: string): number =>
      doc.source.first_line + source.findIndex((code) => code.includes(word));
    const values = (run: number, at: number): string =>
      text(panel.querySelector(`[data-run="${run}"][data-at="${at}"]`));
    expect(values(0, line('def scale'))).toContain('n= 200');
    click(panel, 'Next line');
    expect(values(0, line('inside ='))).toContain('insidebool[64]');
    expect(values(0, line('tl.load'))).toBe('');
    click(panel, 'Next line');
    expect(values(0, line('tl.load'))).toContain('loadx[0:64]');
    expect(values(1, line('tl.load'))).toContain('loadx[192:200], 8 of 64 on');
    expect(panel.querySelectorAll('[data-run="1"] [data-differs]').length).toBeGreaterThan(2);
    click(panel, 'Previous line');
    expect(values(0, line('tl.load'))).toBe('');
    expect(text(panel.querySelector('.bnb-tile-detail'))).toContain('64 of 64 are true.');
  });

  test('a breakpoint in the source stops the run', async () => {
    const { open } = shown(fixture('learn'));
    const panel = open('step');
    await until(() => panel.querySelector('.bnb-step-now'));
    const mark = [...panel.querySelectorAll<HTMLElement>('[data-break]')].at(-2)!; // the store
    mark.click();
    expect(mark.getAttribute('aria-pressed')).toBe('true');
    click(panel, 'Run to breakpoint');
    const where = text(panel.querySelector('[data-part=where]'));
    expect(where).toContain(
      `line ${[...panel.querySelectorAll('.bnb-step-source.bnb-step-now')].map((e) => (e as HTMLElement).dataset.source)[0]}`,
    );
  });

  test('a result shows its elements', async () => {
    const { open } = shown(fixture('learn'));
    const panel = open('step');
    await until(() => panel.querySelector('[data-result]'));
    panel.querySelector<HTMLElement>('[data-result]')!.click();
    expect(text(panel.querySelector('.bnb-tile-detail'))).toContain('out after the launch');
  });
});

describe('helpers', () => {
  const { first_line: first, text: source } = doc.source;
  const call = first + 3;
  const [key, inner] = ['77', 77 * (1 << 20)];
  const none: [number, number] = [-1, -1];
  /** Two calls of a helper in one line, between a load and a store of the same line. */
  const made: StepFacts = {
    grid: [1, 1, 1],
    runs: [
      {
        program: 0,
        events: [
          [first + 1, 'set', 'n', '1', ...none],
          [call, 'load', 'x', 'x[0:4]', ...none],
          [inner + 5, 'set', 'a', '2', ...none],
          [inner + 6, 'set', 'b', '3', ...none],
          [inner + 5, 'set', 'a', '4', ...none],
          [inner + 6, 'set', 'b', '5', ...none],
          [call, 'store', 'out', 'out[0:4]', ...none],
        ],
        calls: [[], [], [call], [call], [call], [call], []],
        cut: '',
        error: '',
      },
    ],
    values: [],
    results: [],
    note: '',
    helpers: {
      [key]: { name: 'twice', file: 'cell 2', first_line: 5, text: 'def twice(a):\n    b = a + 1\n' },
    },
  };

  test('the player goes through the lines of a helper, or over them', () => {
    expect(() => step(made, 'step')).not.toThrow();
    const player = new StepPlayer(made);
    expect(player.steps[0].map((one) => [one.line, one.occurrence])).toEqual([
      [first + 1, 0],
      [call, 0],
      [inner + 5, 0],
      [inner + 6, 0],
      [inner + 5, 1],
      [inner + 6, 1],
      [call, 0],
    ]);
    expect(player.steps[0][1].events.map(([, what]) => what)).toEqual(['load']);
    expect(player.steps[0][6].events.map(([, what]) => what)).toEqual(['load', 'store']);
    player.go(1);
    player.over();
    expect(player.at).toBe(6);
    player.go(2);
    player.over(); // inside the helper: its next line
    expect(player.at).toBe(3);
    player.breakpoints.add(inner + 5);
    player.run(1);
    expect(player.at).toBe(4);
    expect(player.find(call)).toBe(6);
    expect(new StepPlayer({ ...made, runs: [made.runs[0], made.runs[0]] }).steps.length).toBe(2);
  });

  test('a run with fewer calls than events is refused', () => {
    const runs = [{ ...made.runs[0], calls: [[]] }];
    expect(() => step({ ...made, runs }, 'step')).toThrow();
  });

  test('the view shows the source of the helper below its call while the program is in it', async () => {
    const learn = fixture('learn');
    delete learn.teaching!.step;
    const packed = { packed: gzipSync(JSON.stringify(made)).toString('base64') };
    const request = (): Promise<unknown> => Promise.resolve({ part: packed, saved: packed });
    const { open } = shown(learn, { ...saved, state: 'live', request } as Host);
    const panel = open('step');
    await until(() => panel.querySelector('.bnb-step-now'));
    const where = (): string => text(panel.querySelector('[data-part=where]'));
    const order = (): number[] =>
      [...panel.querySelectorAll<HTMLElement>('[data-source]')].map((row) => Number(row.dataset.source));
    const own = source.replace(/\n$/, '').split('\n').length;
    click(panel, 'First line');
    click(panel, 'Next line');
    expect(where()).toBe(`line ${call} · 2 of 7`);
    expect(order().length).toBe(own);
    click(panel, 'Next line');
    expect(where()).toBe(`line 5 of twice, called in line ${call} · 3 of 7`);
    expect(order().slice(call - first, call - first + 4)).toEqual([call, inner + 5, inner + 6, call + 1]);
    expect(text(panel.querySelector(`[data-at="${inner + 5}"]`))).toBe('a= 2');
    expect(panel.querySelector('.bnb-step-call')!.getAttribute('data-source')).toBe(String(call));
    expect(text(panel.querySelector('.bnb-step-helper'))).toBe('helper twice');
    const mark = panel.querySelector<HTMLElement>(`[data-break="${inner + 6}"]`)!;
    mark.click();
    mark.focus();
    click(panel, 'Step over');
    click(panel, 'Run to breakpoint');
    expect(where()).toBe(`line 6 of twice, called in line ${call}, execution 2 · 6 of 7`);
    click(panel, 'Next line');
    expect(where()).toBe(`line ${call} · 7 of 7`);
    expect(order().length).toBe(own);
    expect(document.activeElement!.getAttribute('data-break')).toBe(String(call)); // the keys still work
  });

  test('without helpers there is no button to step over them', async () => {
    const panel = shown(fixture('learn')).open('step');
    await until(() => panel.querySelector('.bnb-step-now'));
    expect(panel.querySelector<HTMLElement>('[aria-label="Step over"]')!.hidden).toBe(true);
  });
});

describe('the footprint', () => {
  test('an element has its program, iteration and line', () => {
    const stores = facts.footprint.maps.find((map) => map.kind === 'stores')!;
    const cells = elementsOfCells(stores);
    const cell = cells.indexOf(130);
    expect(describeCell(stores, cell, 130, facts.footprint.grid)).toMatch(
      /^out\[130\]: program 2 stores it in iteration 0, line \d+$/,
    );
    expect(describeCell(stores, cells.indexOf(220), 220, facts.footprint.grid)).toBe(
      'out[220]: no program stores it',
    );
    expect(stores.holes).toBe(56);
  });

  test('findings are sentences that lead to their lines', async () => {
    const { open, root } = shown(fixture('learn'));
    const panel = open('footprint');
    await until(() => panel.querySelector('.bnb-findings [data-line]'));
    expect(text(panel.querySelector('.bnb-findings'))).toContain('56 of 256 elements are never stored');
    panel.querySelector<HTMLElement>('[data-line]')!.click();
    expect(root.querySelectorAll('[role=tab]').length).toBeGreaterThan(10);
  });
});

describe('the card for learners', () => {
  test('begins with the views that teach; one click leads to the code', async () => {
    const { root } = shown(fixture('learn'));
    const list = root.querySelector<HTMLElement>('[role=tablist]')!;
    const keys = [...list.querySelectorAll<HTMLElement>('[role=tab]')].map((tab) => tab.dataset.key);
    expect(keys.slice(0, 3)).toEqual(['step', 'launch', 'footprint']);
    expect(list.querySelector('[aria-selected=true]')!.getAttribute('data-key')).toBe('step');
    expect(list.dataset.folded).toBe('true');
    click(root, 'IR and machine code');
    expect(list.dataset.folded).toBeUndefined();
    expect(list.querySelector('[aria-selected=true]')!.getAttribute('data-key')).toBe('code');
  });

  test('a card without the option has the usual order, and asks for nothing until a tab is opened', async () => {
    const plain = { ...fixture('scale'), model: 'm' };
    const asked: string[] = [];
    const request = (what: string, content: object): Promise<unknown> => {
      asked.push(what);
      expect(content).toEqual({ part: 'launch' });
      return Promise.resolve({ part: doc.teaching!.launch, saved: doc.teaching!.launch });
    };
    const save = vi.fn();
    const { root, open } = shown(plain, { ...saved, state: 'live', request, save } as Host);
    expect(root.querySelector('[role=tab]')!.getAttribute('data-key')).toBe('code');
    expect(asked).toEqual([]);
    const panel = open('launch');
    await until(() => panel.querySelector('.bnb-launch-tiles code'));
    expect(asked).toEqual(['teach']);
    expect(save.mock.calls[0][0].teaching.launch).toEqual(doc.teaching!.launch);
  });

  test('a saved card without the view says how to save it', () => {
    const { open } = shown(fixture('scale'));
    expect(text(open('footprint'))).toContain('%%blockkernel --footprint');
  });

  test('the knobs are a strip beside any view, and the view follows a change', async () => {
    const changed = fixture('learn');
    changed.modified = {
      settings: 'BLOCK=32',
      verdict: 'noise',
      text: 'within noise',
      outputs: '',
      ratio: null,
      cell: null,
      now: null,
      notes: [],
    };
    delete changed.teaching!.launch;
    const asked: string[] = [];
    const request = (what: string): Promise<unknown> => {
      asked.push(what);
      return Promise.resolve(
        what === 'turn' ? { document: changed } : { part: doc.teaching!.launch, saved: doc.teaching!.launch },
      );
    };
    const learn = fixture('learn');
    learn.knobs = fixture('scale').knobs ?? learn.knobs;
    changed.knobs = learn.knobs;
    const { root, open } = shown(learn, { ...saved, state: 'live', request } as Host);
    const panel = open('launch');
    await until(() => panel.querySelector('.bnb-launch-tiles code'));
    root.querySelector<HTMLElement>('.bnb-strip [aria-expanded]')!.click();
    const slider = root.querySelector<HTMLInputElement>('.bnb-strip [data-knob=BLOCK]')!;
    slider.value = '0';
    slider.dispatchEvent(new Event('input'));
    await until(() => text(root.querySelector('.bnb-strip')).includes('BLOCK=32: within noise'));
    await until(() => asked.includes('teach'));
    expect(asked.filter((what) => what === 'turn').length).toBe(1);
    expect(panel.hidden).toBe(false);
  });
});

test('several targets stand side by side, with their notes and their code', async () => {
  const one = fixture('learn');
  const gpu = one.views.find((view) => view.target?.startsWith('sm_'))!;
  one.views.push({ ...gpu, label: 'sm_80', target: 'sm_80', code: { ptx: undefined as unknown as string } });
  const { open } = shown(one);
  const panel = open('resources');
  const columns = (): HTMLElement[] => [...panel.querySelectorAll<HTMLElement>('.bnb-target-column')];
  expect(columns().map((column) => column.dataset.target)).toEqual(['sm_90a', 'sm_80']);
  const notes = gpu.stages!.flatMap((stage) => stage.notes);
  expect(columns().map((column) => column.querySelectorAll('li').length)).toEqual([
    notes.length,
    notes.length,
  ]);
  const choice = panel.querySelector<HTMLSelectElement>('[aria-label="Compare the targets by"]')!;
  choice.value = 'ptx';
  choice.dispatchEvent(new Event('change'));
  await until(() => text(columns()[0]).includes('.target sm_90a'));
  await until(() => text(columns()[1]).includes('does not contain this text'));
  const single = shown(fixture('learn')).open('resources');
  expect(single.querySelector<HTMLElement>('.bnb-targets-beside')!.hidden).toBe(true);
});

test('a place tells its listeners what changed, and by whom, once', () => {
  const place = new PlaceState();
  const heard = vi.fn();
  const stop = place.onChange(heard);
  place.set({ program: 3 }, 'launch');
  place.set({ program: 3 }, 'launch');
  expect(heard.mock.calls).toEqual([[{ program: 3, iteration: 0, line: null }, 'launch']]);
  stop();
  place.set({ line: 5 });
  expect(heard).toHaveBeenCalledTimes(1);
  expect(place.get()).toEqual({ program: 3, iteration: 0, line: 5 });
});

test('facts with an index out of range are refused', () => {
  const { launch: l, step: s, footprint: f } = facts;
  expect(() => launch({ ...l, ops: [[99, 'load', 1]] }, 'x')).toThrow();
  expect(() => launch({ ...l, rects: [[1, 2, 3]] }, 'x')).toThrow();
  expect(() => step({ ...s, results: [['out', 999]] }, 'x')).toThrow();
  expect(() => step({ ...s, values: s.values.map((v) => ({ ...v, shown: undefined })) }, 'x')).toThrow();
  expect(() => footprint({ ...f, maps: [{ ...f.maps[0], op: [] }] }, 'x')).toThrow();
});

test('the short axis of a long array is drawn about 24 pixels high, in its own scale', () => {
  const high = (rows: number, columns: number): number => rows * fit(rows, columns, 300, 264).y;
  expect([high(3, 300), high(3, 100_000), high(20, 2000), high(100, 2400)]).toEqual([24, 24, 20, 25]);
  expect(fit(3, 100_000, 300, 264).text).toBe('down, 1 element is 8 pixels; across, 1 pixel is 334 elements');
  expect(fit(64, 64, 300, 264)).toEqual({ x: 4, y: 4, text: '1 element is 4 × 4 pixels' });
  expect(fit(512, 1024, 300, 264)).toEqual({ x: 1 / 4, y: 1 / 4, text: '1 pixel is 4 × 4 elements' });
});
