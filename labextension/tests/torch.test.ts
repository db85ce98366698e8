import { describe, expect, test, vi } from 'vitest';

import { problemOf, readable } from '../src/core/documents';
import type { Host } from '../src/core/host';
import { type Document, type ProgramLine, SCHEMA, type TorchPart, type TorchRow } from '../src/core/schema';
import { fixture, saved, shown, until } from './fixtures';

const LINE: ProgramLine = ['In[2]:3', '/tmp/cell.py', 'y = F.gelu(x) <b>'];
const TIME = { n: 20, cold: true, median: 0.02, low: 0.019, high: 0.03, device: '' };
const row = (name: string, more: Partial<TorchRow> = {}): TorchRow => ({
  name,
  configuration: 'XBLOCK=64, num_warps=4',
  grid: '8',
  launches: 1,
  lines: [LINE],
  operators: ['aten.gelu'],
  time: TIME,
  share: 0.5,
  bytes: 4000,
  flops: null,
  exact: true,
  roof: null,
  percent: null,
  why_time: '',
  why_bytes: '',
  why_flops: 'it depends on data',
  groups: [],
  ...more,
});
const PART: TorchPart = {
  title: '2 launches of generated kernels',
  rows: [
    row('triton_poi_fused_gelu_0', { groups: [[0, 0]] }),
    row('triton_per_fused_sum_1', { groups: [[0, 2]], launches: 3 }),
  ],
  more_rows: 0,
  graphs: [
    {
      name: 'forward',
      width: 200,
      height: 300,
      operators: [
        ['aten.mul', 'aten.gelu', 'float32[8, 4]', ['x: float32[8, 4]'], LINE],
        ['aten.mm', 'aten.mm', 'float32[8, 8]', ['mul: float32[8, 4]'], LINE],
        ['aten.sum', 'aten.sum', 'float32[8]', ['mm: float32[8, 8]'], null],
      ],
      nodes: [
        [0, 0, 'mul', 20, 30, 50],
        [1, 1, 'mm (external)', 20, 100, 90],
        [2, 2, 'sum', 20, 200, 50],
      ],
      groups: [
        {
          kind: 'kernel',
          call: 'triton_poi_fused_gelu_0',
          label: 'pointwise 0',
          row: 0,
          box: [10, 10, 80, 50],
        },
        { kind: 'external', call: 'extern_kernels.mm', label: '', row: -1, box: [10, 90, 110, 40] },
        {
          kind: 'kernel',
          call: 'triton_per_fused_sum_1',
          label: 'reduction 1',
          row: 1,
          box: [10, 180, 80, 50],
        },
      ],
      edges: [
        [0, 1, 'M45 50C45 75 65 75 65 100'],
        [1, 2, 'M65 120C65 160 45 160 45 200'],
        [0, 2, 'M45 50V190C45 195 45 195 45 200'],
      ],
      unfused: [[0, 2, 'intermediate nodes between node1 & node2', LINE]],
    },
  ],
  breaks: [{ reason: 'Call to print\n  Hint: remove it', line: LINE, graph: 0 }],
  trend: [
    { when: '2026-01-01T10:00:00+00:00', change: '', time: TIME, kernels: 2, launches: 4, bytes: 8000 },
    {
      when: '2026-01-01T10:01:00+00:00',
      change: '+1 −1 lines',
      time: TIME,
      kernels: 2,
      launches: 4,
      bytes: null,
    },
  ],
};
const doc = (part: Partial<TorchPart> = {}): Document => ({
  schema: SCHEMA,
  kind: 'torch',
  kernel: PART.title,
  version: '',
  model: 'm',
  facts: [],
  source: { file: '', first_line: 1, text: '', hash: '' },
  launches: [],
  views: [],
  blobs: {},
  left_out: [],
  torch: { ...PART, ...part },
});
const texts = (root: ParentNode, selector: string): string[] =>
  [...root.querySelectorAll(selector)].map((element) => element.textContent ?? '');

describe('the page of a compiled model', () => {
  test('has its own views, and a kernel has none of them', () => {
    const { root } = shown(doc());
    expect(texts(root, '[role=tab]')).toEqual(['Kernels', 'Graph', 'Reasons', 'Trend']);
    const keys = [...shown(fixture('scale')).root.querySelectorAll<HTMLElement>('[role=tab]')].map(
      (t) => t.dataset.key,
    );
    expect(keys).not.toContain('kernels');
    expect(keys).not.toContain('fusion');
  });

  test('lists kernels with lines, operators and figures, as text', () => {
    const panel = shown(doc()).open('kernels');
    const [first] = panel.querySelectorAll('tr.bnb-kernel');
    expect(first.textContent).toContain('triton_poi_fused_gelu_0');
    expect(first.textContent).toContain('y = F.gelu(x) <b>');
    expect(texts(first, '.bnb-figure')).toEqual(['0', '20', '50.0', '4', '0.2', 'unknown']);
    expect([...first.querySelectorAll('.bnb-figure')].pop()!.getAttribute('title')).toBe(
      'it depends on data',
    );
    expect(panel.querySelector('b')).toBeNull();
  });

  test('opens the card of a row from the kernel, once, and keeps it in the saved document', async () => {
    const save = vi.fn();
    const request = vi.fn(() => Promise.resolve({ document: fixture('scale') }));
    const host: Host = { state: 'live', request, save };
    const panel = shown(doc(), host).open('kernels');
    const [toggle] = panel.querySelectorAll<HTMLButtonElement>('.bnb-kernel-name');
    toggle.click();
    expect(toggle.getAttribute('aria-expanded')).toBe('true');
    const card = await until(() => panel.querySelector('.bnb-kernel-card .bnb-card'));
    expect(card!.textContent).toContain('scale');
    expect(request).toHaveBeenCalledWith('card', { row: 0 });
    expect((save.mock.calls[0][0] as Document).torch!.cards).toHaveProperty('0');
    toggle.click();
    toggle.click();
    expect(panel.querySelectorAll('.bnb-kernel-card .bnb-card')).toHaveLength(1);
    expect(request.mock.calls.filter(([what]: unknown[]) => what === 'card')).toHaveLength(1);
  });

  test('asks for a listing of an open card through the page', async () => {
    const inner = { ...fixture('scale'), blobs: {}, show: ['code'] };
    const request = vi.fn((what: string) =>
      Promise.resolve(what === 'card' ? { document: inner } : { listing: { text: 'a listing', lines: [1] } }),
    );
    const panel = shown(doc(), { state: 'live', request } as Host).open('kernels');
    panel.querySelector<HTMLElement>('.bnb-kernel-name')!.click();
    await until(() => request.mock.calls.some(([what]) => what === 'of_card'));
    const [, content] = request.mock.calls.find(([what]) => what === 'of_card') as unknown as [
      string,
      { row: number; ask: { what: string } },
    ];
    expect(content.row).toBe(0);
    expect(content.ask.what).toBe('blob');
  });

  test('without a kernel shows the saved card, or says that there is none', async () => {
    const panel = shown(doc({ cards: { '1': fixture('scale') } }), saved).open('kernels');
    const toggles = panel.querySelectorAll<HTMLButtonElement>('.bnb-kernel-name');
    toggles[1].click();
    await until(() => panel.querySelector('.bnb-kernel-card .bnb-card'));
    toggles[0].click();
    await until(() => panel.textContent!.includes('does not contain this card'));
  });

  test('draws boxes, operators and edges, with what they mean', () => {
    const panel = shown(doc()).open('fusion');
    expect(texts(panel, '.bnb-fusion-head')).toEqual(['pointwise 0, 50 %', 'reduction 1, 50 %']);
    expect(texts(panel, '.bnb-fusion-node text')).toEqual(['mul', 'mm (external)', 'sum']);
    expect(panel.querySelector('.bnb-fusion-node title')!.textContent).toBe(
      'aten.mul (of aten.gelu) → float32[8, 4]\ninputs: x: float32[8, 4]\nIn[2]:3: y = F.gelu(x) <b>',
    );
    const titles = texts(panel, '.bnb-fusion-edge title');
    expect(titles[0]).toContain('an external call is not fused');
    expect(titles[2]).toContain('not fused: intermediate nodes between node1 & node2');
    expect(panel.querySelectorAll('.bnb-fusion-refused')).toHaveLength(1);
  });

  test('selects the row of a box, and the box of a row', () => {
    const mounted = shown(doc());
    const kernels = mounted.open('kernels');
    const graph = mounted.open('fusion');
    const boxes = graph.querySelectorAll<SVGGElement>('.bnb-fusion-box');
    boxes[2].dispatchEvent(new MouseEvent('click', { bubbles: true }));
    expect(boxes[2].getAttribute('aria-pressed')).toBe('true');
    expect(kernels.querySelector('.bnb-kernel-selected')!.getAttribute('data-row')).toBe('1');
    expect(graph.querySelector('.bnb-fusion-about')!.textContent).toContain('triton_per_fused_sum_1');
    kernels.querySelector<HTMLElement>('[aria-label="Show triton_poi_fused_gelu_0 in the graph"]')!.click();
    expect([...boxes].map((box) => box.getAttribute('aria-pressed'))).toEqual(['true', 'false', 'false']);
  });

  test('opens the card of a selected box', async () => {
    const mounted = shown(doc({ cards: { '1': fixture('scale') } }));
    mounted.open('kernels');
    const graph = mounted.open('fusion');
    graph
      .querySelectorAll('.bnb-fusion-box')[2]
      .dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }));
    [...graph.querySelectorAll('button')].find((one) => one.textContent === 'Open card')!.click();
    const card = await until(() => mounted.root.querySelector('.bnb-kernel-card:not([hidden]) .bnb-card'));
    expect(card!.closest('tr')!.previousElementSibling!.getAttribute('data-row')).toBe('1');
  });

  test('moves between boxes by the arrow keys, and has one stop for Tab', () => {
    const graph = shown(doc()).open('fusion');
    const boxes = [...graph.querySelectorAll<SVGGElement>('.bnb-fusion-box')];
    expect(boxes.map((box) => box.getAttribute('tabindex'))).toEqual(['0', '-1', '-1']);
    boxes[0].dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true }));
    expect(document.activeElement).toBe(boxes[1]);
  });

  test('lists breaks and reasons at their lines, and shows a pair in the graph', () => {
    const mounted = shown(doc());
    const panel = mounted.open('reasons');
    const rows = texts(panel, 'tbody tr');
    expect(rows[0]).toContain('Call to print');
    expect(rows[0]).toContain('In[2]:3');
    expect(rows[1]).toContain('intermediate nodes between node1 & node2');
    panel.querySelector<HTMLElement>('[aria-label^="Show pointwise 0 and reduction 1"]')!.click();
    const pressed = [...mounted.root.querySelectorAll('.bnb-fusion-box')].map((box) =>
      box.getAttribute('aria-pressed'),
    );
    expect(pressed).toEqual(['true', 'false', 'true']);
    expect(mounted.root.querySelector('.bnb-fusion-pair')!.getAttribute('d')).toBe('M50 35L50 205');
  });

  test('plots the runs of the cell', () => {
    const panel = shown(doc()).open('trend');
    expect(panel.querySelectorAll('.bnb-mark')).toHaveLength(2);
    expect(texts(panel, 'tbody tr')[1]).toContain('+1 −1 lines');
    expect(texts(panel, 'tbody tr')[1]).toContain('unknown');
  });

  test('leaves out tabs without contents', () => {
    const { root } = shown(doc({ graphs: [], breaks: [], trend: [] }));
    expect(texts(root, '[role=tab]')).toEqual(['Kernels']);
  });
});

describe('the check of the part', () => {
  const wrong = (change: (part: TorchPart) => void): string => {
    const part = structuredClone(PART);
    change(part);
    return problemOf(doc(part));
  };

  test('accepts the part', () => expect(problemOf(doc())).toBe(''));

  test('rejects indices out of range, paths that are none, and pages inside of pages', () => {
    expect(wrong((part) => (part.graphs[0].nodes[0][0] = 3))).toContain('graph of its own nodes');
    expect(wrong((part) => (part.graphs[0].edges[0][1] = 9))).toContain('graph of its own nodes');
    expect(wrong((part) => (part.graphs[0].unfused[0][0] = 9))).toContain('graph of its own nodes');
    expect(wrong((part) => (part.graphs[0].groups[0].row = 2))).toContain('table with all rows');
    expect(wrong((part) => (part.graphs[0].edges[0][2] = 'url(x)'))).toContain('a path');
    expect(wrong((part) => (part.cards = { '0': doc() }))).toContain('inside of another one');
    expect(readable(doc({ cards: { '0': fixture('scale') } }))).toBe(true);
  });
});
