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

/** lane, kind, start, end, until, word, line, op, slot, number, bytes: as blocknb/notebook/timelines.py writes it. */
type Row = [number, number, number, number, number, number, number, number, number, number, number];

/** What is under way, in clocks; `busy` is the share of the time in which a product is. */
export interface Spans {
  lanes: string[];
  words: string[];
  spans: Row[];
  busy: number;
  cut: boolean;
  about: string;
}

const KINDS = ['copy', 'product', 'arithmetic', 'store', 'wait'] as const;
const HIGH = 20; // px of a lane
const LETTER = 6.6; // px of a letter
const SLOTS = 8; // colours
const ZOOMS = [1, 2, 4, 8, 16];

/** The sentence about a span. */
export function told(facts: Spans, row: Row): string {
  const [lane, kind, start, end, until, word, , , slot, number, bytes] = row;
  const what = facts.words[word];
  const when = `clocks ${count(start)} to ${count(end)}`;
  const moved = bytes ? `, ${count(bytes)} bytes` : '';
  switch (KINDS[kind]) {
    case 'copy': {
      const waits = until > end ? `, read up to clock ${count(until)}` : '';
      return `copy ${number} of ${what} to slot ${slot}: ${when}${moved}${waits}`;
    }
    case 'product':
      return `${facts.lanes[lane].replace(/ products$/, '')}: ${what}${number < 0 ? '' : ` of copy ${number}, slot ${slot}`}: ${when}`;
    case 'wait':
      return `${facts.lanes[lane]} waits${what ? ` for ${what}` : ''}: ${when}`;
    default: {
      const kindOf = KINDS[kind];
      return `${facts.lanes[lane]}: ${kindOf}${what && what !== kindOf ? ` (${what})` : ''}: ${when}${moved}`;
    }
  }
}

class TimelineView implements Mounted {
  private facts: Spans | null = null;
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
    return true;
  }

  private async load(): Promise<void> {
    const turn = ++this.asked;
    const part = this.store.doc.timeline;
    let found: Spans | null = null;
    let why = part?.why ?? '';
    try {
      found = part?.packed ? ((await inflate(part.packed)) as Spans) : null;
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
    const row = this.facts.spans[index];
    this.chosen = index;
    this.status.textContent = told(this.facts, row);
    for (const old of this.box.querySelectorAll('.bnb-span-now')) {
      old.classList.remove('bnb-span-now');
    }
    this.box.querySelector(`[data-span="${index}"]`)?.classList.add('bnb-span-now');
    const same = this.store.doc.timeline?.view === this.store.view;
    const selection: Selection = {
      lines: row[6] ? [row[6]] : [],
      op: same ? row[7] : null,
      from: 'timeline',
    };
    if (pin) {
      this.store.pin(selection);
    } else {
      this.store.hover(selection);
    }
  }

  /** The spans of the lines that are selected elsewhere. */
  private light(): void {
    const selected = this.store.selection;
    const lines = selected && selected.from !== 'timeline' ? selected.lines : [];
    for (const span of this.box.querySelectorAll<SVGElement>('[data-span]')) {
      const line = this.facts?.spans[Number(span.dataset.span)][6] ?? 0;
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

  private draw(facts: Spans): void {
    const room = Math.max(380, Math.min(1000, this.box.clientWidth || 760));
    this.box.replaceChildren(drawing(facts, room * this.zoom));
    this.light();
  }
}

/** The lanes and their spans. */
export function drawing(facts: Spans, width: number): SVGSVGElement {
  const left = Math.max(...facts.lanes.map((lane) => lane.length)) * LETTER + 12;
  const end = Math.max(1, ...facts.spans.map(([, , , stop, until]) => Math.max(stop, until)));
  const x = (clock: number): number => left + (clock / end) * (width - left - 8);
  const bottom = facts.lanes.length * HIGH + 4;
  const made = svg('svg', { class: 'bnb-timeline', width, height: bottom + 34, role: 'img' });
  made.setAttribute('aria-label', `${facts.lanes.length} lanes: ${facts.lanes.join('; ')}`);
  facts.lanes.forEach((lane, i) => {
    made.append(
      svg('line', {
        class: 'bnb-plot-grid',
        x1: left,
        x2: width - 8,
        y1: (i + 1) * HIGH + 1,
        y2: (i + 1) * HIGH + 1,
      }),
      svg('text', { x: left - 6, y: i * HIGH + 15, 'text-anchor': 'end' }, lane),
    );
  });
  const step = ticks(end, Math.max(4, Math.floor(width / 130)));
  for (let clock = 0; clock <= end; clock += step) {
    made.append(
      svg('line', { class: 'bnb-plot-grid', x1: x(clock), x2: x(clock), y1: 0, y2: bottom }),
      svg('text', { x: x(clock), y: bottom + 14, 'text-anchor': 'middle' }, count(clock)),
    );
  }
  made.append(svg('text', { x: left, y: bottom + 29 }, 'clocks, reckoned, not measured'));
  // Waits lie below what goes on meanwhile.
  const order = facts.spans.map((row, i) => ({ row, i })).sort((a, b) => b.row[1] - a.row[1]);
  made.append(...order.flatMap(({ row, i }) => marks(row, i, x)));
  return made;
}

function marks(row: Row, index: number, x: (clock: number) => number): Element[] {
  const [lane, kind, start, end, until, , , , slot] = row;
  const y = lane * HIGH + 3;
  const rect = (name: string, from: number, to: number, top: number, height: number): SVGRectElement =>
    svg('rect', {
      class: `bnb-span bnb-span-${name}`,
      'data-span': index,
      x: x(from),
      y: top,
      width: Math.max(1, x(to) - x(from) - 0.5),
      height,
    });
  const colour = `slot-${Math.max(0, slot) % SLOTS}`;
  switch (KINDS[kind]) {
    case 'copy':
      return [
        rect(`held bnb-span-${colour}`, start, Math.max(end, until), y, HIGH - 5),
        rect(`copy bnb-span-${colour}`, start, end, y + 3, HIGH - 11),
      ];
    case 'product': {
      const box = rect(`product bnb-span-${colour}`, start, end, y, HIGH - 5);
      const wide = x(end) - x(start) > 2 * LETTER && slot >= 0;
      const at = { x: (x(start) + x(end)) / 2, y: y + 12, 'text-anchor': 'middle', class: 'bnb-span-number' };
      return wide ? [box, svg('text', at, String(slot))] : [box];
    }
    case 'wait':
      return [rect('wait', start, end, y + 6, 3)];
    default:
      return [rect(KINDS[kind], start, end, y, HIGH - 5)];
  }
}

/** A round step that makes about so many ticks. */
export function ticks(end: number, most: number): number {
  const rough = end / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((n) => n * power >= rough) ?? 10);
}

function legend(): HTMLElement {
  const key = (name: string, text: string): HTMLElement =>
    h(
      'span.bnb-timeline-key',
      {},
      svg(
        'svg',
        { width: 18, height: 12, 'aria-hidden': 'true' },
        svg('rect', { class: `bnb-span bnb-span-${name}`, width: 18, height: 12 }),
      ),
      text,
    );
  return h(
    'p.bnb-legend',
    {},
    key('copy bnb-span-slot-0', 'copy under way'),
    key('held bnb-span-slot-0', 'waits in its slot'),
    key('product bnb-span-slot-0', 'product, with its slot'),
    key('arithmetic', 'arithmetic'),
    key('store', 'store'),
    key('wait', 'waits'),
  );
}
