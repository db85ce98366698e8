/**
 * The Timeline view: the schedule of one CTA on a multiprocessor. A track shows the copies into each stage of a circular buffer. Other
 * tracks show the MMAs, arithmetic, stores and waits of each warp role. An MMA has the colour and number of the stage that it reads.
 * The view describes the selected span and highlights its op in the code.
 */

import { h, svg, uniqueId } from '../dom';
import { count } from '../plot/numbers';
import { timeline as timelineCheck } from '../packed_parts';
import type { Selection, Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

export const timeline: ViewSpec = {
  key: 'timeline',
  title: 'Timeline',
  tooltip: 'Copies, arithmetic and waits of one CTA over time, by a model',
  empty: (doc) =>
    doc.timeline?.packed ? null : (doc.timeline?.why ?? 'The saved card does not contain a timeline.'),
  mount: (panel, store) => new TimelineView(panel, store),
};

const KINDS = ['copy', 'mma', 'arithmetic', 'store', 'wait'] as const;

/** Track, kind, start, end, until, word, line, op, stage, number and bytes, as blocknb/notebook/timelines.py writes them. */
type Row = [number, number, number, number, number, number, number, number, number, number, number];

/** The packed timeline, in clock cycles. `busy` is the share of the time with an MMA in flight. */
export interface Packed {
  lanes: string[];
  words: string[];
  spans: Row[];
  busy: number;
  cut: boolean;
  about: string;
}

/** A decoded row. `line` 0 and `number`, `slot` -1: none. The data of a copy stay in their stage until `until`. */
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

/** A decoded timeline. */
export interface Timeline extends Omit<Packed, 'spans' | 'words'> {
  spans: Span[];
}

/** Decodes a timeline. */
export function read({ words, spans, ...rest }: Packed): Timeline {
  const named = ([lane, kind, start, end, until, word, line, op, slot, number, bytes]: Row): Span => {
    return { lane, kind: KINDS[kind], start, end, until, what: words[word], line, op, slot, number, bytes };
  };
  return { ...rest, spans: spans.map(named) };
}

const TRACK_HEIGHT = 20; // px
const LETTER_WIDTH = 6.6; // px
const NAME_LETTER_WIDTH = 7.4; // px: names have capital letters
const STAGE_COLOURS = [
  '#0072b2',
  '#e69f00',
  '#009e73',
  '#cc79a7',
  '#56b4e9',
  '#d6c81a',
  '#8a6bbf',
  '#a6761d',
];
const ZOOMS = [1, 2, 4, 8, 16];

/** Describes a span. */
export function describeSpan(lanes: readonly string[], span: Span): string {
  const { kind, what, slot, number } = span;
  const lane = lanes[span.lane];
  const when = `cycles ${count(span.start)} to ${count(span.end)}`;
  const moved = span.bytes ? `, ${count(span.bytes)} bytes` : '';
  switch (kind) {
    case 'copy': {
      const used = span.until > span.end ? `, in use until cycle ${count(span.until)}` : '';
      return `copy ${number} of ${what} to stage ${slot}: ${when}${moved}${used}`;
    }
    case 'mma': {
      const from = number < 0 ? '' : ` of copy ${number}, stage ${slot}`;
      return `${lane.replace(/ MMA$/, '')}: ${what}${from}: ${when}`;
    }
    case 'wait':
      return `${lane} waits${what ? ` for ${what}` : ''}: ${when}`;
    default:
      return `${lane}: ${kind}${what && what !== kind ? ` (${what})` : ''}: ${when}${moved}`;
  }
}

class TimelineView implements Mounted {
  private facts: Timeline | null = null;
  private loadToken = 0;
  private zoom = 1;
  private chosen = -1;
  private readonly tools = h('div.bnb-tools');
  private readonly box = h('div.bnb-timeline-box', { tabindex: 0, role: 'group', 'aria-label': 'Timeline' });
  private readonly status = h('p.bnb-quiet.bnb-description', { role: 'status', id: uniqueId('timeline') });
  private readonly about = h('p.bnb-quiet');
  readonly keys = [['← →', 'previous or next span']] as const;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.box.setAttribute('aria-describedby', this.status.id);
    panel.append(this.tools, this.box, this.status, legend(), this.about);
    const at = (event: Event): number =>
      Number((event.target as Element).closest<SVGElement>('[data-span]')?.dataset.span ?? -1);
    this.box.addEventListener('pointerover', (event) => this.select(at(event), false));
    this.box.addEventListener('pointerleave', () => this.store.hover(null));
    this.box.addEventListener('click', (event) => this.select(at(event), true));
    this.store.run(this.load());
  }

  update(change: string): void {
    if (change === 'document') {
      this.store.run(this.load());
    } else if (change === 'selection') {
      this.highlight();
    }
  }

  key(event: KeyboardEvent): boolean {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined || !this.facts) {
      return false;
    }
    this.select(Math.max(0, Math.min(this.facts.spans.length - 1, this.chosen + by)), true);
    const shape = this.box.querySelector('.bnb-span-now');
    shape?.scrollIntoView?.({ block: 'nearest', inline: 'nearest' });
    return true;
  }

  private async load(): Promise<void> {
    const token = ++this.loadToken;
    const part = this.store.doc.timeline;
    let found: Timeline | null = null;
    let why = part?.why ?? '';
    if (part?.packed) {
      const packed = (await this.store.inflated(part.packed, timelineCheck)) as Packed | null;
      found = packed && read(packed);
      why = 'The timeline in this card cannot be read.';
    }
    if (token !== this.loadToken) {
      return;
    }
    this.facts = found;
    this.chosen = -1;
    this.status.textContent = found ? 'Hover over a span, or use ← and → to step through the spans.' : why;
    this.about.textContent = found?.about ?? '';
    this.paint();
  }

  private select(index: number, pin: boolean): void {
    if (!this.facts || index < 0) {
      return;
    }
    const span = this.facts.spans[index];
    this.chosen = index;
    this.status.textContent = describeSpan(this.facts.lanes, span);
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

  /** Outlines the selected span. */
  private outline(): void {
    for (const shape of this.box.querySelectorAll<SVGElement>('[data-span]')) {
      shape.classList.toggle('bnb-span-now', Number(shape.dataset.span) === this.chosen);
    }
  }

  /** Highlights the spans of lines that are selected in other views. */
  private highlight(): void {
    const selected = this.store.selection;
    const lines = selected && selected.from !== 'timeline' ? selected.lines : [];
    for (const span of this.box.querySelectorAll<SVGElement>('[data-span]')) {
      const line = this.facts?.spans[Number(span.dataset.span)].line ?? 0;
      span.classList.toggle('bnb-span-highlight', line > 0 && lines.includes(line));
    }
  }

  private paint(): void {
    const facts = this.facts;
    if (!facts) {
      this.tools.replaceChildren();
      this.box.replaceChildren();
      return;
    }
    const choice = h('select.bnb-select', {
      'aria-label': 'Zoom',
      title: 'The length of a clock cycle on the page',
    });
    choice.append(...ZOOMS.map((z) => h('option', { value: z, selected: z === this.zoom }, `× ${z}`)));
    choice.addEventListener('change', () => {
      this.zoom = Number(choice.value);
      this.draw(facts);
    });
    const more = facts.cut ? '; only the beginning is shown' : '';
    const busy = `MMA in flight ${Math.round(facts.busy * 100)} % of the time${more}`;
    this.tools.replaceChildren(h('span.bnb-verdict', {}, busy), h('label', {}, 'zoom ', choice));
    this.box.setAttribute('aria-label', `Timeline: ${busy}`);
    this.draw(facts);
  }

  private draw(facts: Timeline): void {
    const room = Math.max(380, Math.min(1000, this.box.clientWidth || 760));
    const [names, chart] = drawing(facts, room, this.zoom);
    this.box.style.scrollPaddingLeft = `${names.getAttribute('width')}px`; // the track names cover the left edge
    this.box.replaceChildren(names, chart);
    this.highlight();
    this.outline();
  }
}

/** Draws the fixed track names and the scrollable spans. Their total width is `room` px at zoom 1. */
export function drawing(facts: Timeline, room: number, zoom = 1): SVGSVGElement[] {
  const { lanes, spans } = facts;
  const left = Math.max(...lanes.map((lane) => lane.length)) * NAME_LETTER_WIDTH + 12;
  const end = Math.max(1, ...spans.map((span) => Math.max(span.end, span.until)));
  const half = (count(Math.round(end)).length * LETTER_WIDTH) / 2 + 2; // half the width of a tick label
  const width = (room - left) * zoom;
  const x = (clock: number): number => half + (clock / end) * (width - 2 * half);
  const bottom = lanes.length * TRACK_HEIGHT + 4;
  const height = bottom + 34;
  const names = svg('svg', { class: 'bnb-timeline bnb-timeline-names', width: left, height });
  const chart = svg('svg', { class: 'bnb-timeline', width, height, role: 'img' });
  names.setAttribute('aria-hidden', 'true');
  chart.setAttribute('aria-label', `${lanes.length} tracks: ${lanes.join('; ')}`);
  const grid = (x1: number, y1: number, x2: number, y2: number): SVGElement =>
    svg('line', { class: 'bnb-plot-grid', x1, y1, x2, y2 });
  lanes.forEach((lane, i) => {
    names.append(svg('text', { x: left - 6, y: i * TRACK_HEIGHT + 15, 'text-anchor': 'end' }, lane));
    chart.append(grid(x(0), (i + 1) * TRACK_HEIGHT + 1, x(end), (i + 1) * TRACK_HEIGHT + 1));
  });
  const step = ticks(end, Math.max(4, Math.floor(width / 130)));
  for (let clock = 0; clock <= end; clock += step) {
    chart.append(
      grid(x(clock), 0, x(clock), bottom),
      svg('text', { x: x(clock), y: bottom + 14, 'text-anchor': 'middle' }, count(clock)),
    );
  }
  chart.append(svg('text', { x: x(0), y: bottom + 29 }, 'clock cycles (modelled, not measured)'));
  // Waits are drawn first, below concurrent spans.
  const order = [...spans.keys()].sort((a, b) => KINDS.indexOf(spans[b].kind) - KINDS.indexOf(spans[a].kind));
  chart.append(...order.flatMap((i) => shapes(spans[i], i, x)));
  return [names, chart];
}

function shapes(span: Span, index: number, x: (clock: number) => number): SVGElement[] {
  const { kind, start, end } = span;
  const slot = Math.max(0, span.slot) % STAGE_COLOURS.length;
  const y = span.lane * TRACK_HEIGHT + 3;
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
        rect('held', Math.max(end, span.until), y, TRACK_HEIGHT - 5, STAGE_COLOURS[slot]),
        rect('copy', end, y + 3, TRACK_HEIGHT - 11, STAGE_COLOURS[slot]),
      ];
    case 'mma': {
      const box = rect('mma', end, y, TRACK_HEIGHT - 5, STAGE_COLOURS[slot]);
      const wide = x(end) - x(start) > 2 * LETTER_WIDTH && span.slot >= 0;
      const at = { x: (x(start) + x(end)) / 2, y: y + 12, 'text-anchor': 'middle', class: 'bnb-span-number' };
      const fill = slot === 0 ? '#fff' : '#000'; // only the first colour is dark
      return wide ? [box, svg('text', { ...at, fill }, String(span.slot))] : [box];
    }
    case 'wait':
      return [rect('wait', end, y + 6, 3)];
    default:
      return [rect(kind, end, y, TRACK_HEIGHT - 5)];
  }
}

/** Returns a round tick step for about `most` ticks. */
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
    key('copy', 'copy in flight', STAGE_COLOURS[0]),
    key('held', 'data held in a stage', STAGE_COLOURS[0]),
    key('mma', 'MMA, with its stage', STAGE_COLOURS[0]),
    key('arithmetic', 'arithmetic'),
    key('store', 'store'),
    key('wait', 'wait'),
  );
}
