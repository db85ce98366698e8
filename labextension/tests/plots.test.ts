import { beforeEach, describe, expect, test, vi } from 'vitest';

import { mount } from '../src/core/mount';
import { count, digits, tick, time } from '../src/core/plot/numbers';
import { benchPlot } from '../src/core/plot/bars';
import { csvText, svgText } from '../src/core/plot/export';
import {
  isLogarithmic,
  plottedSweep,
  plottedTimes,
  type Quantity,
  sweepRecords,
} from '../src/core/plot/series';
import type { Document, Roofline, Sweep } from '../src/core/schema';
import { problemOf } from '../src/core/documents';
import { targetText, readTarget } from '../src/core/link_target';
import { cardAddress, requestedTarget } from '../src/lab/address';
import { versionRuns } from '../src/core/views/version_runs';
import PLOTTED from './fixtures/plotted.json';
import { Store } from '../src/core/store';
import { plottedPoints, roofline, roofs } from '../src/core/views/roofline';
import type { Mounted, ViewSpec } from '../src/core/views/spec';
import { sweep, xAxis } from '../src/core/views/sweep';

const MEASURED: Roofline = {
  device: 'NVIDIA H200',
  measured: '2026-01-02T03:04:05+00:00',
  ceilings: [
    { name: 'memory', unit: 'GB/s', value: 4250, low: 4240, high: 4260, how: 'a copy by CuPy (cudaMemcpy)' },
    { name: 'L2 cache', unit: 'GB/s', value: 6800, how: 'a block program' },
    { name: 'memory reads', unit: 'GB/s', value: 4500, how: 'a sum by a block program' },
    { name: 'shared memory', unit: 'GB/s', value: 31000, how: 'a block program' },
    { name: 'FP32', unit: 'TFLOP/s', value: 58, how: 'a block program' },
    { name: 'tensor fp16', unit: 'TFLOP/s', value: 761, how: 'cuBLAS matmul' },
  ],
  points: [
    {
      label: 'matmul',
      kind: 'kernel',
      flops: 2 * 4096 ** 3,
      bytes: 6 * 4096 ** 2,
      issued_bytes: 2181038080,
      time: { n: 30, cold: true, median: 0.23, low: 0.225, high: 0.24, device: 'a GPU' },
      roof: 'tensor fp16',
      percent: 78.5,
    },
    {
      label: 'matmul@1',
      kind: 'version',
      flops: 2 * 4096 ** 3,
      bytes: 6 * 4096 ** 2,
      time: { n: 30, cold: true, median: 0.9, low: 0.9, high: 0.91, device: 'a GPU' },
      version: 'abc',
    },
    {
      label: '<script>alert(1)</script>',
      kind: 'baseline',
      flops: 2 * 4096 ** 3,
      bytes: 6 * 4096 ** 2,
      time: { n: 30, cold: true, median: 0.18, low: 0.18, high: 0.19, device: 'a GPU' },
    },
    {
      label: 'copy',
      kind: 'kernel',
      flops: 0,
      bytes: 1024,
      time: { n: 30, cold: true, median: 0.01, low: 0.01, high: 0.01, device: 'a GPU' },
    },
    {
      label: 'gather',
      kind: 'kernel',
      flops: 5,
      bytes: null,
      time: { n: 30, cold: true, median: 0.01, low: 0.01, high: 0.01, device: 'a GPU' },
    },
  ],
  note: 'hardware counters: none, ncu is not installed.',
};

const SWEPT: Sweep = {
  axis: 'n',
  values: [1024, 4096, 65536, 1048576],
  unit: 'GB/s',
  series: [
    {
      label: 'softmax',
      kind: 'kernel',
      median: [10, 40, 900, 3100],
      low: [9, 39, 880, 3000],
      high: [11, 41, 910, 3150],
    },
    {
      label: 'cupy <b>',
      kind: 'baseline',
      median: [5, 20, 500, null],
      low: [4, 19, 490, null],
      high: [6, 21, 510, null],
    },
  ],
};

function document_(parts: Partial<Document>): Document {
  return {
    schema: 4,
    kind: 'compile',
    kernel: 'softmax',
    version: 'v',
    facts: [],
    source: { file: '', first_line: 1, text: '', hash: '' },
    launches: [],
    views: [{ role: 'ran', label: 'CPU', place: 'cpu', target: 'cpu', stages: [], code: {} }],
    blobs: {},
    left_out: [],
    ...parts,
  } as Document;
}

function open(view: ViewSpec, parts: Partial<Document>): { panel: HTMLElement; store: Store; view: Mounted } {
  const store = new Store(document_(parts), { state: 'saved' });
  const panel = document.createElement('div');
  document.body.append(panel);
  return { panel, store, view: view.mount(panel, store) };
}

const texts = (root: Element, selector: string) =>
  [...root.querySelectorAll(selector)].map((e) => e.textContent);
const key = (name: string) => new KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true });

beforeEach(() => document.body.replaceChildren());

describe('numbers', () => {
  test('have the same format as in Python', () => {
    expect([0.0123, 1.234, 123.4, 1234, 100].map(digits)).toEqual(['0.0123', '1.23', '123', '1234', '100']);
    expect([0.0000005, 0.5, 12, 20000].map(time)).toEqual(['0.5 ns', '500 µs', '12 ms', '20 s']);
    expect([count(1234567), count(null)]).toEqual(['1,234,567', 'unknown']);
    expect([tick(65536, 2), tick(1000, 2), tick(0.01, 10), tick(1e6, 10)]).toEqual([
      '64 Ki',
      '1000',
      '0.01',
      '1e6',
    ]);
  });
});

describe('roofline', () => {
  test('an empty view says how to measure one', () => {
    expect(roofline.empty(document_({}), { host: { state: 'saved' } } as never)).toContain(
      '%roofline softmax',
    );
    expect(roofline.empty(document_({ roofline: MEASURED }), null as never)).toBeNull();
  });

  test('plots the points with flops and bytes; the table shows all', () => {
    const found = plottedPoints(MEASURED);
    expect(found.map((p) => p.point.label)).toEqual(['matmul', 'matmul@1', '<script>alert(1)</script>']);
    expect(found[0].intensity).toBeCloseTo((2 * 4096) / 6, 6);
    expect(found[0].rate).toBeCloseTo(597.6, 1);
    expect(found[0].issued).toBeCloseTo((2 * 4096 ** 3) / 2181038080, 6);
    expect(roofs(MEASURED).slanted.map((c) => c.name)).toEqual(['memory', 'L2 cache']);
  });

  test('draws labelled ceilings, a shape per kind, and a table with the same numbers', () => {
    const { panel } = open(roofline, { roofline: MEASURED });
    expect(texts(panel, '.bnb-roof-label')).toEqual([
      'memory 4250 GB/s',
      'L2 cache 6800 GB/s',
      'tensor fp16 761 TFLOP/s',
      'FP32 58 TFLOP/s',
    ]);
    const shapes = ['kernel', 'version', 'baseline'].map((kind) =>
      panel.querySelector(`.bnb-kind-${kind}:not(.bnb-issued) path`)!.getAttribute('d'),
    );
    expect(new Set(shapes).size).toBe(3);
    expect(panel.querySelectorAll('.bnb-issued')).toHaveLength(1);
    expect(panel.querySelector('.bnb-trajectory')).not.toBeNull();
    const rows = texts(panel.querySelectorAll('table')[0], 'tbody tr');
    expect(rows).toHaveLength(5);
    expect(rows[0]).toContain('78.5 % of tensor fp16');
    expect(rows[4]).toContain('unknown');
    expect(texts(panel.querySelectorAll('table')[1], 'tbody th')).toContain('shared memory');
    expect(panel.textContent).toContain('ncu is not installed');
  });

  test('no path contains NaN or Infinity', () => {
    for (const [view, parts] of [
      [roofline, { roofline: MEASURED }],
      [sweep, { sweep: SWEPT }],
    ] as const) {
      const { panel } = open(view, parts);
      expect(panel.querySelectorAll('path').length).toBeGreaterThan(3);
      expect(panel.innerHTML).not.toMatch(/NaN|Infinity|undefined/);
    }
  });

  test('names from the kernel are not markup', () => {
    const { panel } = open(roofline, { roofline: MEASURED });
    expect(panel.querySelector('script')).toBeNull();
    expect(texts(panel, '.bnb-point-label')).toContain('<script>alert(1)</script>');
  });

  test('the points are one tab stop; the arrow keys and the pointer describe a point', () => {
    const { panel } = open(roofline, { roofline: MEASURED });
    const marks = [...panel.querySelectorAll<SVGGElement>('.bnb-mark')];
    expect(marks.filter((m) => m.getAttribute('tabindex') === '0')).toHaveLength(1);
    marks[0].focus();
    const first = panel.querySelector('.bnb-description')!.textContent;
    const event = key('ArrowRight');
    marks[0].dispatchEvent(event);
    expect(event.defaultPrevented).toBe(true);
    expect(document.activeElement).toBe(marks[1]);
    expect(panel.querySelector('.bnb-description')!.textContent).not.toBe(first);
    const baseline = marks.find((m) => m.getAttribute('aria-label')!.includes('script'))!;
    baseline.dispatchEvent(new MouseEvent('mouseenter'));
    expect(panel.querySelector('.bnb-description')!.textContent).toContain(
      '180 µs (median of 30, cold, 180 µs to 190 µs, a GPU)',
    );
  });

  test('without ceilings only the tables are shown', () => {
    const { panel } = open(roofline, { roofline: { ...MEASURED, ceilings: [] } });
    expect(panel.querySelector('svg')).toBeNull();
    expect(panel.querySelectorAll('tbody tr')).toHaveLength(5);
  });
});

describe('sweep', () => {
  test('an empty view says how to measure one', () => {
    expect(sweep.empty(document_({}), { host: { state: 'saved' } } as never)).toContain('--sweep');
  });

  test('a wide range of numbers has a logarithmic axis, and names are evenly spaced', () => {
    const log = xAxis(SWEPT);
    expect(log.at(1) - log.at(0)).toBeCloseTo((log.at(3) - log.at(0)) / 5, 6);
    expect(log.ticks.map((t) => t.label)).toEqual(expect.arrayContaining(['1 Ki', '64 Ki', '1 Mi']));
    const linear = xAxis({ ...SWEPT, values: [10, 20, 30, 40] });
    expect(linear.at(1) - linear.at(0)).toBeCloseTo(linear.at(3) - linear.at(2), 6);
    const named = xAxis({ ...SWEPT, values: ['a', 'b', true, 3] });
    expect(named.ticks.map((t) => t.label)).toEqual(['a', 'b', 'true', '3']);
    expect(named.at(1)).toBeGreaterThan(named.at(0));
    expect(Number.isFinite(xAxis({ ...SWEPT, values: [8] }).at(0))).toBe(true);
  });

  test('series differ by dash and shape, have bands, and have a gap at a missing value', () => {
    const { panel } = open(sweep, { sweep: SWEPT });
    const lines = [...panel.querySelectorAll('.bnb-plot-data .bnb-line')];
    expect(new Set(lines.map((l) => l.getAttribute('stroke-dasharray'))).size).toBe(2);
    expect(panel.querySelectorAll('.bnb-band')).toHaveLength(2);
    expect(panel.querySelectorAll('.bnb-plot-data .bnb-mark')).toHaveLength(7);
    const [a, b] = [0, 4].map((i) =>
      panel.querySelectorAll('.bnb-plot-data .bnb-mark path')[i].getAttribute('d'),
    );
    expect(a).not.toBe(b);
    expect(texts(panel, '.bnb-legend-list li')).toEqual([' softmax', ' cupy <b> (baseline)']);
  });

  test('the answer stands above the plot', () => {
    const { panel } = open(sweep, { sweep: { ...SWEPT, answer: 'n over 4 values, best at 8' } });
    const answer = panel.querySelector('[data-part=answer]')!;
    expect(answer.textContent).toBe('n over 4 values, best at 8');
    const after = answer.compareDocumentPosition(panel.querySelector('.bnb-plot-place')!);
    expect(after & Node.DOCUMENT_POSITION_FOLLOWING).toBeTruthy();
    expect(open(sweep, { sweep: SWEPT }).panel.querySelector<HTMLElement>('[data-part=answer]')!.hidden).toBe(
      true,
    );
  });

  test('the table has the same numbers and marks the best value', () => {
    const { panel } = open(sweep, { sweep: SWEPT });
    const rows = [...panel.querySelectorAll('tbody tr')].map((row) =>
      [...row.children].map((c) => c.textContent),
    );
    expect(rows[0]).toEqual(['1024', '10 (9 to 11) ◂ best', '5 (4 to 6)']);
    expect(rows[3]).toEqual(['1048576', '3100 (3000 to 3150) ◂ best', '']);
    const slow = open(sweep, { sweep: { ...SWEPT, unit: 'ms' } });
    expect(slow.panel.querySelector('tbody tr')!.textContent).toContain('5 (4 to 6) ◂ best');
  });

  test('the arrow keys move along a series and between series', () => {
    const { panel } = open(sweep, { sweep: SWEPT });
    const marks = [...panel.querySelectorAll<SVGGElement>('.bnb-plot-data .bnb-mark')];
    marks[0].focus();
    expect(panel.querySelector('.bnb-description')!.textContent).toBe(
      'softmax, n = 1024: 10 GB/s, from 9 to 11',
    );
    marks[0].dispatchEvent(key('ArrowRight'));
    expect(document.activeElement).toBe(marks[1]);
    marks[1].dispatchEvent(key('ArrowDown'));
    expect(document.activeElement).toBe(marks[5]);
    marks[5].dispatchEvent(key('End'));
    expect(document.activeElement).toBe(marks[6]);
  });

  test('the view reports partial results and omitted values', () => {
    const { panel, store, view } = open(sweep, {
      sweep: { ...SWEPT, cancelled: true, notes: ['n = 7: <i>no room</i>'] },
    });
    expect(panel.textContent).toContain('The sweep was interrupted. These results are partial.');
    expect(panel.textContent).toContain('<i>no room</i>');
    store.update(document_({ sweep: { ...SWEPT, values: [], series: [], cancelled: true } }));
    view.update('document');
    expect(panel.querySelector('svg.bnb-plot')).toBeNull();
    expect(panel.textContent).toContain('The sweep was interrupted');
    store.update(document_({}));
    view.update('document');
    expect(panel.textContent).toContain('There is no sweep');
  });
});

test('a card has both tabs, and a plot keeps its keys', () => {
  const place = document.createElement('div');
  document.body.append(place);
  const card = mount(place, document_({ roofline: MEASURED, sweep: SWEPT }), { state: 'saved' });
  const outside = vi.fn();
  document.body.addEventListener('keydown', outside);
  place.querySelector<HTMLElement>('[data-key="sweep"]')!.click();
  const marked = place.querySelector<SVGGElement>('.bnb-plot-data .bnb-mark')!;
  marked.focus();
  marked.dispatchEvent(key('ArrowRight'));
  expect(outside).not.toHaveBeenCalled();
  place.querySelector<HTMLElement>('[data-key="roofline"]')!.click();
  expect(place.querySelectorAll('.bnb-roof')).toHaveLength(4);
  document.body.removeEventListener('keydown', outside);
  card.dispose();
});

describe('the numbers of plots', () => {
  const sweeps = PLOTTED.sweeps as unknown as {
    part: Sweep;
    shown: Partial<Record<Quantity, ReturnType<typeof plottedSweep>>>;
    logarithmic: boolean;
    records: unknown[][];
  }[];

  test('are those that Matplotlib draws and that a CSV file of Python has', () => {
    for (const { part, shown, logarithmic, records } of sweeps) {
      expect(problemOf(document_({ sweep: part }))).toBe('');
      for (const [show, wanted] of Object.entries(shown)) {
        const found = plottedSweep(part, show as Quantity);
        expect(found.unit).toBe(wanted.unit);
        expect(found.series.map((s) => s.label)).toEqual(wanted.series.map((s) => s.label));
        found.series.forEach((series, i) => {
          for (const column of ['median', 'low', 'high'] as const) {
            series[column].forEach((value, j) => {
              const other = wanted.series[i][column][j];
              expect(value === null).toBe(other === null);
              expect(value ?? 0).toBeCloseTo(other ?? 0, 9);
            });
          }
        });
      }
      expect(isLogarithmic(part.values)).toBe(logarithmic);
      expect(sweepRecords(part)).toEqual(records);
    }
    const { entries, shown } = PLOTTED.times as never as { entries: never; shown: unknown };
    expect(plottedTimes(entries)).toEqual(shown);
  });

  test('are drawn at the places of a linear and of a logarithmic scale', () => {
    const { panel } = open(sweep, { sweep: sweeps[0].part });
    const heights = (): number[] =>
      [...panel.querySelectorAll('.bnb-plot-data > .bnb-mark')].map((m) =>
        Number(/ ([\d.]+)\)/.exec(m.getAttribute('transform')!)![1]),
      );
    const select = (label: string, value: string): void => {
      const found = [...panel.querySelectorAll('label')].find((l) => l.textContent!.startsWith(label))!;
      const chosen = found.querySelector('select')!;
      chosen.value = value;
      chosen.dispatchEvent(new Event('change'));
    };
    const [a, b, c] = heights(); // 0.5, 2 and 40 GB/s
    expect((a - c) / (b - c)).toBeCloseTo((40 - 0.5) / (40 - 2), 2);
    select('vertical axis', 'log');
    const [d, e, f] = heights();
    expect((d - f) / (e - f)).toBeCloseTo(Math.log(40 / 0.5) / Math.log(40 / 2), 2);
    select('show', 'time');
    expect(panel.querySelector('.bnb-plot')!.getAttribute('aria-label')).toBe('µs over n');
    expect(texts(panel, 'tbody tr')[0]).toContain('24 (');
    expect(panel.innerHTML).not.toMatch(/NaN|Infinity/);
  });

  test('a heat map has a cell per point, and a missing one says so', () => {
    const { panel } = open(sweep, { sweep: sweeps[3].part });
    const cells = [...panel.querySelectorAll('.bnb-cell')];
    expect(cells.map((cell) => cell.getAttribute('aria-label'))).toEqual([
      'add, BLOCK = 64, num_warps = 4: 1.5 TFLOP/s',
      'add, BLOCK = 128, num_warps = 4: 12 TFLOP/s',
      'add, BLOCK = 64, num_warps = 8: not measured',
      'add, BLOCK = 128, num_warps = 8: 3 TFLOP/s',
    ]);
    expect(panel.querySelectorAll('tbody tr')).toHaveLength(4);
    expect(problemOf(document_({ sweep: { ...sweeps[3].part, values: [64] } }))).toContain('each point');
  });

  test('a saved plot has its styles, its legend and no scripts; a CSV file quotes what it must', () => {
    const { panel } = open(sweep, { sweep: SWEPT });
    const file = svgText(panel.querySelector('svg')!);
    const parsed = new DOMParser().parseFromString(file, 'image/svg+xml');
    expect(parsed.querySelector('parsererror')).toBeNull();
    expect(parsed.documentElement.getAttribute('width')).toBe('720');
    expect([...parsed.querySelectorAll('text')].map((t) => t.textContent)).toContain('cupy <b>');
    expect(parsed.querySelector('script, [tabindex], [onclick]')).toBeNull();
    expect(
      csvText([
        ['a,b', '"', null],
        [1, true, 0.5],
      ]),
    ).toBe('"a,b","""",\r\n1,true,0.5\r\n');
    const bars = benchPlot({ rounds: 3, rows: [{ label: '<b>', kind: 'kernel', error: 'failed' }] });
    expect(bars.outerHTML).not.toMatch(/NaN|Infinity|<b>/);
  });
});

test('the history shows earlier sessions and all runs', () => {
  const time = { n: 30, cold: false, median: 0.25, low: 0.2, high: 0.5, device: 'CPU' };
  const version = {
    version: 'abcdef0123456789', number: 1, note: '', first: '2026-01-01T00:00:00+00:00', first_line: 1, source: null,
    constants: {}, time, measurements: 1, rate: null, target: null, registers: null, shared_bytes: null,
    spill_bytes: null, ok: false, earlier: true,
  }; // prettier-ignore
  const runs = ['cell', 'knobs', 'autotune'].map((what) => ({
    version: 1, what, settings: 'BLOCK=64', when: '2026-01-01T00:00:00+00:00', time, verdict: 'noise',
  })); // prettier-ignore
  const two = [version, { ...version, version: 'abcdef0123456780', number: 2, ok: true, earlier: false }];
  const doc = document_({ history: { versions: two, runs } });
  expect(problemOf(doc)).toBe('');
  const place = document.createElement('div');
  place.append(...versionRuns(doc));
  expect(place.querySelectorAll('.bnb-mark')).toHaveLength(2);
  expect(place.querySelector('.bnb-mark')!.getAttribute('aria-label')).toContain('✗ wrong: 250 µs');
  expect(texts(place, 'tbody tr')[0]).toContain('autotuner');
  expect(place.innerHTML).not.toMatch(/NaN|undefined/);
  expect(
    problemOf(document_({ history: { versions: two, runs: [{ ...runs[0], time: 'soon' }] } as never })),
  ).toContain('time');
});

describe('links', () => {
  test('name a tab and a stage, and nothing else is read as one', () => {
    const target = { tab: 'passes', parts: { pass: 'coalesce.12', value: 'größe;1:2' } };
    expect(targetText(target)).toBe('v1;passes;pass:coalesce.12;value:gr%C3%B6%C3%9Fe~11%3A2');
    expect(readTarget(targetText(target))).toEqual(target);
    expect(readTarget('sweep')).toEqual({ tab: 'sweep', parts: {} });
    for (const wrong of ['', null, 'a.b.c', '<b>', 'passes.', 'x'.repeat(100)]) {
      expect(readTarget(wrong)).toBeNull();
    }
  });

  test('to a notebook have the cell in the fragment, and open the card of that cell only', () => {
    const from = { origin: 'http://here', pathname: '/user/me/lab/workspaces/x/tree/old.ipynb' } as Location;
    const link = cardAddress('a b/c#1.ipynb', 'cell-1', { tab: 'passes', parts: { pass: 'parse.0' } }, from);
    expect(link).toBe(
      'http://here/user/me/lab/tree/a%20b/c%231.ipynb?blocknb=v1;passes;pass:parse.0#cell-id=cell-1',
    );
    expect(requestedTarget('cell-1', new URL(link))).toEqual({ tab: 'passes', parts: { pass: 'parse.0' } });
    expect(requestedTarget('cell-2', new URL(link))).toBeUndefined();
    for (const value of ['cpu:rocketlake', 'größe;1:2', 'a~1;~2%41%3B+b c&d#e=f']) {
      const target = { tab: 'resources', parts: { target: value, line: '7' } };
      expect(requestedTarget('1', new URL(cardAddress('c.ipynb', '1', target, from)))).toEqual(target);
      expect(readTarget(targetText(target))).toEqual(target); // as in a fragment
    }
    const seven = { origin: 'http://here', pathname: '/notebooks/c.ipynb' } as Location;
    expect(cardAddress('c.ipynb', '1', { tab: 'code', parts: {} }, seven)).toBe(
      'http://here/notebooks/c.ipynb?blocknb=v1;code#cell-id=1',
    );
  });

  test('are copied from the foot of a card, which has only what its host can do', () => {
    const place = document.createElement('div');
    document.body.append(place);
    const copy = vi.fn();
    const card = mount(place, document_({ sweep: SWEPT }), { state: 'saved' });
    const foot = place.querySelector<HTMLElement>('.bnb-share')!;
    const buttons = (): HTMLElement[] =>
      [...foot.querySelectorAll<HTMLElement>('button')].filter((b) => !b.hidden);
    expect(buttons()).toHaveLength(0);
    card.connect({ state: 'saved', copy, link: (at) => `here#${targetText(at)}` });
    expect(buttons()).toHaveLength(1);
    card.open({ tab: 'sweep', parts: {} });
    expect(card.now().tab).toBe('sweep');
    [...foot.querySelectorAll('button')].find((b) => b.textContent === 'Copy link')!.click();
    expect(copy).toHaveBeenCalledWith(`here#${targetText(card.now())}`);
    card.dispose();
  });
});
