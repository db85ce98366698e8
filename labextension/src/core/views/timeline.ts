/**
 * Timeline: what is under way when, for one program on a multiprocessor. Slots of shared memory are lanes that copies fill; a product has
 * the colour and the number of the slot that it reads; below it stand arithmetic, stores and waits of who works. What is pointed at
 * is told in a sentence, and its op is lit in the code.
 */

import { h, svg, uniqueId } from '../dom';
import { count } from '../plot/numbers';
import { inflate } from '../schema';
import type { Selection, Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

export const timeline: ViewSpec = {
  key: 'timeline',
  title: 'Timeline',
  empty: (doc) =>
    doc.timeline?.packed ? null : (doc.timeline?.why ?? 'This card was saved without a timeline.'),
  mount: (panel, store) => new TimelineView(panel, store),
};

const KINDS = ['copy', 'product', 'arithmetic', 'store', 'wait'] as const;

/** lane, kind, start, end, until, word, line, op, slot, number, bytes: as blocknb/notebook/timelines.py writes it. */
type Row = [number, number, number, number, number, number, number, number, number, number, number];

/** What is under way as it is packed, in clocks; `busy` is the share of the time in which a product is. */
export interface Packed {
  lanes: string[];
  words: string[];
  spans: Row[];
  busy: number;
  cut: boolean;
  about: string;
}

/** A row with names; `line` 0 and `number`, `slot` -1: none. A copy stays in its slot up to `until`. */
interface Span {
  lane: number;
  kind: (typeof KINDS)[number];
  start: number;
  end: number;
  until: number;
  what: string;
  line: number;
  op: number;
  slot: number;
  number: number;
  bytes: number;
}

export interface Timeline extends Omit<Packed, 'spans' | 'words'> {
  spans: Span[];
}

export function read({ words, spans, ...rest }: Packed): Timeline {
  const named = ([lane, kind, start, end, until, word, line, op, slot, number, bytes]: Row): Span => {
    return { lane, kind: KINDS[kind], start, end, until, what: words[word], line, op, slot, number, bytes };
  };
  return { ...rest, spans: spans.map(named) };
}

const HIGH = 20; // px of a lane
const LETTER = 6.6; // px of a letter
const SLOTS = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d6c81a', '#8a6bbf', '#a6761d'];
const ZOOMS = [1, 2, 4, 8, 16];

/** The sentence about a span. */
export function told(lanes: readonly string[], span: Span): string {
  const { kind, what, slot, number } = span;
  const lane = lanes[span.lane];
  const when = `clocks ${count(span.start)} to ${count(span.end)}`;
  const moved = span.bytes ? `, ${count(span.bytes)} bytes` : '';
  switch (kind) {
    case 'copy': {
      const waits = span.until > span.end ? `, read up to clock ${count(span.until)}` : '';
      return `copy ${number} of ${what} to slot ${slot}: ${when}${moved}${waits}`;
    }
    case 'product': {
      const from = number < 0 ? '' : ` of copy ${number}, slot ${slot}`;
      return `${lane.replace(/ products$/, '')}: ${what}${from}: ${when}`;
    }
    case 'wait':
      return `${lane} waits${what ? ` for ${what}` : ''}: ${when}`;
    default:
      return `${lane}: ${kind}${what && what !== kind ? ` (${what})` : ''}: ${when}${moved}`;
  }
}

class TimelineView implements Mounted {
  private facts: Timeline | null = null;
  private asked = 0;
  private zoom = 1;
  private chosen = -1;
  private readonly tools = h('div.bnb-tools');
  private readonly box = h('div.bnb-timeline-box', { tabindex: 0, role: 'group' });
  private readonly status = h('p.bnb-quiet.bnb-told', { role: 'status', id: uniqueId('timeline') });
  private readonly about = h('p.bnb-quiet');
  readonly keys = [['← →', 'the span before, the next one']] as const;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.box.setAttribute('aria-describedby', this.status.id);
    panel.append(this.tools, this.box, this.status, legend(), this.about);
    const at = (event: Event): number =>
      Number((event.target as Element).closest<SVGElement>('[data-span]')?.dataset.span ?? -1);
    this.box.addEventListener('pointerover', (event) => this.tell(at(event), false));
    this.box.addEventListener('pointerleave', () => this.store.hover(null));
    this.box.addEventListener('click', (event) => this.tell(at(event), true));
    void this.load();
  }

  update(change: string): void {
    if (change === 'document') {
      void this.load();
    } else if (change === 'selection') {
      this.light();
    }
  }

  key(event: KeyboardEvent): boolean {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined || !this.facts) {
      return false;
    }
    this.tell(Math.max(0, Math.min(this.facts.spans.length - 1, this.chosen + by)), true);
    const shape = this.box.querySelector('.bnb-span-now');
    shape?.scrollIntoView?.({ block: 'nearest', inline: 'nearest' });
    return true;
  }

  private async load(): Promise<void> {
    const turn = ++this.asked;
    const part = this.store.doc.timeline;
    let found: Timeline | null = null;
    let why = part?.why ?? '';
    try {
      found = part?.packed ? read((await inflate(part.packed)) as Packed) : null;
    } catch {
      why = 'What the card says of its timeline cannot be read.';
    }
    if (turn !== this.asked) {
      return;
    }
    this.facts = found;
    this.chosen = -1;
    this.status.textContent = found ? 'Point at a span, or step through them with ← and →.' : why;
    this.about.textContent = found?.about ?? '';
    this.paint();
  }

  private tell(index: number, pin: boolean): void {
    if (!this.facts || index < 0) {
      return;
    }
    const span = this.facts.spans[index];
    this.chosen = index;
    this.status.textContent = told(this.facts.lanes, span);
    this.outline();
    const same = this.store.doc.timeline?.view === this.store.view;
    const selection: Selection = {
      lines: span.line ? [span.line] : [],
      op: same ? span.op : null,
      from: 'timeline',
    };
    if (pin) {
      this.store.pin(selection);
    } else {
      this.store.hover(selection);
    }
  }

  /** The span that was told last. */
  private outline(): void {
    for (const shape of this.box.querySelectorAll<SVGElement>('[data-span]')) {
      shape.classList.toggle('bnb-span-now', Number(shape.dataset.span) === this.chosen);
    }
  }

  /** The spans of the lines that are selected elsewhere. */
  private light(): void {
    const selected = this.store.selection;
    const lines = selected && selected.from !== 'timeline' ? selected.lines : [];
    for (const span of this.box.querySelectorAll<SVGElement>('[data-span]')) {
      const line = this.facts?.spans[Number(span.dataset.span)].line ?? 0;
      span.classList.toggle('bnb-span-lit', line > 0 && lines.includes(line));
    }
  }

  private paint(): void {
    const facts = this.facts;
    if (!facts) {
      this.tools.replaceChildren();
      this.box.replaceChildren();
      return;
    }
    const choice = h('select.bnb-select', { 'aria-label': 'Zoom' });
    choice.append(...ZOOMS.map((z) => h('option', { value: z, selected: z === this.zoom }, `× ${z}`)));
    choice.addEventListener('change', () => {
      this.zoom = Number(choice.value);
      this.draw(facts);
    });
    const more = facts.cut ? '; the beginning only' : '';
    const busy = `products under way ${Math.round(facts.busy * 100)} % of the time${more}`;
    this.tools.replaceChildren(h('span.bnb-verdict', {}, busy), h('label', {}, 'zoom ', choice));
    this.box.setAttribute('aria-label', `Timeline: ${busy}`);
    this.draw(facts);
  }

  private draw(facts: Timeline): void {
    const room = Math.max(380, Math.min(1000, this.box.clientWidth || 760));
    const [names, chart] = drawing(facts, room, this.zoom);
    this.box.style.scrollPaddingLeft = `${names.getAttribute('width')}px`; // the names stand in front of what is scrolled there
    this.box.replaceChildren(names, chart);
    this.light();
    this.outline();
  }
}

/** The names of the lanes, which stay where they are, and their spans; together `room` px wide, the spans times `zoom`. */
export function drawing(facts: Timeline, room: number, zoom = 1): SVGSVGElement[] {
  const { lanes, spans } = facts;
  const left = Math.max(...lanes.map((lane) => lane.length)) * LETTER + 12;
  const end = Math.max(1, ...spans.map((span) => Math.max(span.end, span.until)));
  const half = (count(Math.round(end)).length * LETTER) / 2 + 2; // of the numbers at both ends
  const width = (room - left) * zoom;
  const x = (clock: number): number => half + (clock / end) * (width - 2 * half);
  const bottom = lanes.length * HIGH + 4;
  const height = bottom + 34;
  const names = svg('svg', { class: 'bnb-timeline bnb-timeline-names', width: left, height });
  const chart = svg('svg', { class: 'bnb-timeline', width, height, role: 'img' });
  names.setAttribute('aria-hidden', 'true');
  chart.setAttribute('aria-label', `${lanes.length} lanes: ${lanes.join('; ')}`);
  const grid = (x1: number, y1: number, x2: number, y2: number): SVGElement =>
    svg('line', { class: 'bnb-plot-grid', x1, y1, x2, y2 });
  lanes.forEach((lane, i) => {
    names.append(svg('text', { x: left - 6, y: i * HIGH + 15, 'text-anchor': 'end' }, lane));
    chart.append(grid(x(0), (i + 1) * HIGH + 1, x(end), (i + 1) * HIGH + 1));
  });
  const step = ticks(end, Math.max(4, Math.floor(width / 130)));
  for (let clock = 0; clock <= end; clock += step) {
    chart.append(
      grid(x(clock), 0, x(clock), bottom),
      svg('text', { x: x(clock), y: bottom + 14, 'text-anchor': 'middle' }, count(clock)),
    );
  }
  chart.append(svg('text', { x: x(0), y: bottom + 29 }, 'clocks, reckoned, not measured'));
  // Waits lie below what goes on meanwhile.
  const order = [...spans.keys()].sort((a, b) => KINDS.indexOf(spans[b].kind) - KINDS.indexOf(spans[a].kind));
  chart.append(...order.flatMap((i) => shapes(spans[i], i, x)));
  return [names, chart];
}

function shapes(span: Span, index: number, x: (clock: number) => number): SVGElement[] {
  const { kind, start, end } = span;
  const slot = Math.max(0, span.slot) % SLOTS.length;
  const y = span.lane * HIGH + 3;
  const rect = (
    look: string,
    to: number,
    top: number,
    height: number,
    fill: string | null = null,
  ): SVGRectElement =>
    svg('rect', {
      class: `bnb-span bnb-span-${look}`,
      'data-span': index,
      x: x(start),
      y: top,
      width: Math.max(1, x(to) - x(start) - 0.5),
      height,
      fill,
    });
  switch (kind) {
    case 'copy':
      return [
        rect('held', Math.max(end, span.until), y, HIGH - 5, SLOTS[slot]),
        rect('copy', end, y + 3, HIGH - 11, SLOTS[slot]),
      ];
    case 'product': {
      const box = rect('product', end, y, HIGH - 5, SLOTS[slot]);
      const wide = x(end) - x(start) > 2 * LETTER && span.slot >= 0;
      const at = { x: (x(start) + x(end)) / 2, y: y + 12, 'text-anchor': 'middle', class: 'bnb-span-number' };
      const fill = slot === 0 ? '#fff' : '#000'; // the first colour is the one dark one
      return wide ? [box, svg('text', { ...at, fill }, String(span.slot))] : [box];
    }
    case 'wait':
      return [rect('wait', end, y + 6, 3)];
    default:
      return [rect(kind, end, y, HIGH - 5)];
  }
}

/** A round step that makes about so many ticks. */
export function ticks(end: number, most: number): number {
  const rough = end / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((n) => n * power >= rough) ?? 10);
}

function legend(): HTMLElement {
  const key = (look: string, text: string, fill: string | null = null): HTMLElement => {
    const box = { class: `bnb-span-${look}`, width: 18, height: 12, fill };
    const sample = svg('svg', { width: 18, height: 12, 'aria-hidden': 'true' }, svg('rect', box));
    return h('span.bnb-timeline-key', {}, sample, text);
  };
  return h(
    'p.bnb-legend',
    {},
    key('copy', 'copy under way', SLOTS[0]),
    key('held', 'waits in its slot', SLOTS[0]),
    key('product', 'product, with its slot', SLOTS[0]),
    key('arithmetic', 'arithmetic'),
    key('store', 'store'),
    key('wait', 'waits'),
  );
}
