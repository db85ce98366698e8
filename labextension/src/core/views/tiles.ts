/**
 * Tiles: which program, warp and lane touches which element, for one load, store, atomic or dot at a time; what memory makes of it,
 * in numbers; and in which order programs cross the array that they write. The op looked at is lit in the code.
 */

import { button, h, uniqueId } from '../dom';
import { programs } from '../plot/programs';
import type { Selection, Store } from '../store';
import {
  programName,
  sentences,
  title,
  elements,
  unpackTiles,
  verdict,
  type TileAccess,
  type TileOp,
  type Tiles as Facts,
} from '../tiles';
import type { Mounted, ViewSpec } from './spec';
import { paintsOf, TileSheet, type Paint } from './tilesheet';

export const tiles: ViewSpec = {
  key: 'tiles',
  title: 'Tiles',
  empty: (doc) =>
    doc.tiles?.packed ? null : (doc.tiles?.why ?? 'This card was saved without the accesses of its kernel.'),
  mount: (panel, store) => new Tiles(panel, store),
};

class Tiles implements Mounted {
  private facts: Facts | null = null;
  private chosen = 0;
  private side = -1; // of a dot: 0 and 1 its operands, -1 the result
  private program = 0;
  private trip = 0;
  private paint: Paint = 'warp';
  private asked = 0;
  private readonly answers = new Map<string, Record<string, TileAccess>>();

  private readonly list = h('ol.bnb-stages', {
    role: 'listbox',
    tabindex: 0,
    'aria-label': 'Accesses, in order',
  });
  private readonly tools = h('div.bnb-tools');
  private readonly numbers = h('ul.bnb-notes', { 'aria-label': 'What memory makes of it' });
  private readonly sheet = new TileSheet();
  private readonly map = h('div.bnb-map');
  private readonly status = h('p.bnb-quiet', { role: 'status' });

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    const main = h('div.bnb-main', {}, this.tools, this.status, this.numbers, this.sheet.element);
    panel.append(h('div.bnb-split', {}, h('div.bnb-side', {}, this.list, this.map), main));
    this.listen();
    void this.load();
  }

  update(change: string): void {
    if (change === 'document') {
      this.answers.clear();
      void this.load();
    } else if (change === 'host' && this.facts?.ops.length) {
      this.paintAll();
    } else if (change === 'selection') {
      this.light();
    }
  }

  key(event: KeyboardEvent): boolean {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by && this.facts) {
      this.step(by);
    }
    return by !== undefined;
  }

  dispose(): void {
    this.sheet.dispose();
  }

  private listen(): void {
    const row = (event: Event): HTMLElement | null => (event.target as Element).closest('[data-op]');
    this.list.addEventListener('click', (event) => {
      const found = row(event);
      if (found) {
        this.choose(Number(found.dataset.op));
      }
    });
    this.list.addEventListener('pointerover', (event) => {
      const found = row(event);
      if (found) {
        this.lightCode(Number(found.dataset.op));
      }
    });
    this.list.addEventListener('pointerleave', () => this.store.hover(null));
    this.list.addEventListener('focus', () => this.facts && this.lightCode(this.chosen));
    this.list.addEventListener('blur', () => this.store.hover(null));
    this.list.addEventListener('keydown', (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by && this.facts) {
        this.choose(Math.max(0, Math.min(this.facts.ops.length - 1, this.chosen + by)));
        this.lightCode(this.chosen);
        event.preventDefault();
      }
    });
  }

  private async load(): Promise<void> {
    const turn = ++this.asked;
    const part = this.store.doc.tiles;
    let found: Facts | null = null;
    let why = part?.why ?? '';
    try {
      found = part?.packed ? await unpackTiles(part) : null;
    } catch {
      why = 'What the card says of its accesses cannot be read.';
    }
    if (turn !== this.asked) {
      return;
    }
    this.facts = found;
    if (!found) {
      this.clear();
      this.status.textContent = why;
      return;
    }
    this.chosen = Math.min(this.chosen, found.ops.length - 1);
    this.program = Math.min(this.program, this.total - 1);
    this.trip = 0;
    if (this.chosen < 0) {
      this.clear();
      this.status.textContent = 'The kernel touches no array and multiplies no tiles.';
      return;
    }
    this.paintAll();
    void this.fetch();
  }

  /** Nothing is left of what an earlier document showed. */
  private clear(): void {
    [this.list, this.tools, this.numbers, this.map].forEach((element) => element.replaceChildren());
    this.sheet.element.hidden = true;
  }

  private get total(): number {
    return elements(this.facts!.grid);
  }

  private get op(): TileOp {
    return this.facts!.ops[this.chosen];
  }

  private get accesses(): Record<string, TileAccess> | undefined {
    const saved = this.trip ? undefined : this.facts!.programs[this.program];
    return saved ?? this.answers.get(`${this.program}:${this.trip}`);
  }

  private get access(): TileAccess | undefined {
    return this.accesses?.[this.op.op];
  }

  /** The programs that can be looked at: all with a kernel, else those that were saved. */
  private get offered(): number[] | null {
    const saved = Object.keys(this.facts!.programs)
      .map(Number)
      .sort((a, b) => a - b);
    return this.store.host.request && saved.length < this.total ? null : saved;
  }

  // ---- choosing

  private choose(op: number): void {
    this.chosen = op;
    this.side = -1;
    this.paintAll();
    this.store.pin(this.selectionOf(this.op));
  }

  private lightCode(op: number): void {
    this.store.hover(this.selectionOf(this.facts!.ops[op]));
  }

  /** Ids of ops are those of the target that the tiles are of: on another one only the line is lit. */
  private selectionOf(op: TileOp): Selection {
    const same = this.store.doc.tiles?.view === this.store.view;
    return { lines: op.line ? [op.line] : [], op: same ? op.op : null, from: 'tiles' };
  }

  private step(by: number): void {
    const offered = this.offered;
    if (!offered) {
      this.go(this.program + by);
      return;
    }
    const at = offered.indexOf(this.program);
    this.go(offered[Math.max(0, Math.min(offered.length - 1, at + by))]);
  }

  private go(program: number, trip = 0): void {
    const offered = this.offered;
    if (program < 0 || program >= this.total || (offered && !offered.includes(program))) {
      return;
    }
    this.program = program;
    this.trip = trip;
    this.paintAll();
    void this.fetch();
  }

  /** Asks the kernel for a program that was not saved. */
  private async fetch(): Promise<void> {
    const { program, trip } = this;
    const request = this.store.host.request;
    if (this.accesses || !request) {
      return;
    }
    const turn = ++this.asked;
    this.status.textContent = 'asking the kernel…';
    try {
      const answer = (await request('tiles', { program, trip })) as { accesses: Record<string, TileAccess> };
      this.answers.set(`${program}:${trip}`, answer.accesses);
      if (turn === this.asked) {
        this.paintAll();
      }
    } catch (error) {
      if (turn === this.asked) {
        this.status.textContent = String((error as Error).message);
      }
    }
  }

  // ---- painting

  private paintAll(): void {
    this.sheet.element.hidden = false;
    if (!paintsOf(this.op).includes(this.paint)) {
      this.paint = paintsOf(this.op)[0];
    }
    this.paintList();
    this.paintTools();
    this.paintNumbers();
    this.sheet.show(this.facts!, this.op, this.access, this.side, this.paint);
    this.paintMap();
  }

  private paintList(): void {
    const made = this.facts!.ops.map((op, i) =>
      h(
        'li.bnb-stage',
        { role: 'option', id: uniqueId('tile'), 'data-op': i, 'aria-selected': String(i === this.chosen) },
        h('span.bnb-stage-name', {}, title(op)),
        h('span.bnb-stage-effect', {}, op.line ? `line ${op.line}` : ''),
        h(
          'span.bnb-stage-time.bnb-verdict',
          {},
          this.accesses || op.shared || op.dot ? verdict(op, this.accesses?.[op.op]) : '…',
        ),
      ),
    );
    this.list.replaceChildren(...made);
    this.list.setAttribute('aria-activedescendant', made[this.chosen]?.id ?? '');
    made[this.chosen]?.scrollIntoView?.({ block: 'nearest' });
    this.light();
  }

  private light(): void {
    const selected = this.store.selection;
    for (const row of this.list.querySelectorAll<HTMLElement>('[data-op]')) {
      const op = this.facts?.ops[Number(row.dataset.op)];
      row.classList.toggle(
        'bnb-lit',
        !!op && !!selected && selected.from !== 'tiles' && selected.lines.includes(op.line),
      );
    }
  }

  private paintTools(): void {
    const focused = (document.activeElement as HTMLElement | null)?.dataset?.tool;
    const offered = this.offered;
    const known = offered ?? [];
    const input = h('input', {
      type: 'range',
      min: 0,
      max: (offered ? known.length : this.total) - 1,
      step: 1,
      value: offered ? Math.max(0, known.indexOf(this.program)) : this.program,
      'aria-label': 'Program',
      'aria-valuetext': programName(this.program, this.facts!.grid, this.facts!.order),
      'data-tool': 'program',
    });
    input.addEventListener('input', () =>
      this.go(offered ? known[Number(input.value)] : Number(input.value)),
    );
    const colour = h('select.bnb-select', { 'aria-label': 'Numbers and colours', 'data-tool': 'paint' });
    colour.append(...paintsOf(this.op).map((p) => h('option', { value: p, selected: p === this.paint }, p)));
    colour.addEventListener('change', () => {
      this.paint = colour.value as Paint;
      this.sheet.show(this.facts!, this.op, this.access, this.side, this.paint);
    });
    this.tools.replaceChildren(
      button('‹', () => this.step(-1), { 'aria-label': 'Previous program', 'data-tool': 'previous' }),
      input,
      button('›', () => this.step(1), { 'aria-label': 'Next program', 'data-tool': 'next' }),
      h('span.bnb-program-name', {}, programName(this.program, this.facts!.grid, this.facts!.order)),
      ...this.trips(),
      h('label', {}, 'show ', colour),
      ...this.sides(),
    );
    if (focused) {
      this.tools.querySelector<HTMLElement>(`[data-tool="${focused}"]`)?.focus();
    }
    const saved = offered && offered.length < this.total;
    this.status.textContent = saved
      ? `Saved: programs ${offered.join(', ')}. With a kernel, all ${this.total} can be looked at.`
      : '';
  }

  /** Which trip of the loop around the op. */
  private trips(): HTMLElement[] {
    const trips = this.access?.trips;
    if (trips === undefined) {
      return [];
    }
    if (trips === null || !this.store.host.request) {
      return [h('span.bnb-quiet', {}, trips === null ? 'first trip of the loop' : `first of ${trips} trips`)];
    }
    const input = h('input.bnb-filter', {
      type: 'number',
      min: 0,
      max: trips - 1,
      value: this.trip,
      'data-tool': 'trip',
    });
    input.addEventListener('change', () =>
      this.go(this.program, Math.max(0, Math.min(trips - 1, Math.floor(Number(input.value)) || 0))),
    );
    return [h('label', {}, 'trip ', input, ` of ${trips}`)];
  }

  /** Which of a dot's three tiles. */
  private sides(): HTMLElement[] {
    if (!this.op.dot) {
      return [];
    }
    const choice = h('select.bnb-select', { 'aria-label': 'Tile of the dot', 'data-tool': 'side' });
    for (const [side, label] of [
      [-1, 'result'],
      [0, 'left operand'],
      [1, 'right operand'],
    ] as const) {
      choice.append(h('option', { value: side, selected: side === this.side }, label));
    }
    choice.addEventListener('change', () => {
      this.side = Number(choice.value);
      this.paintAll();
    });
    return [h('label', {}, 'of the ', choice)];
  }

  private paintNumbers(): void {
    const known = this.accesses || this.op.shared || this.op.dot;
    const said = known ? sentences(this.op, this.access) : [];
    this.numbers.replaceChildren(...said.map((text) => h('li', {}, text)));
    this.numbers.firstElementChild?.classList.add('bnb-verdict');
  }

  private paintMap(): void {
    const map = this.facts!.map;
    if (!map) {
      this.map.replaceChildren();
      return;
    }
    const more = this.total > map.origins.length ? `, the first ${map.origins.length} of ${this.total}` : '';
    const drawing = programs(map, this.program, (program) => this.go(program));
    const about = `Programs over ${map.array}, numbered in the order of their launch${more}`;
    this.map.replaceChildren(
      h('p.bnb-quiet', {}, about),
      h('div.bnb-map-box', { tabindex: 0, role: 'group', 'aria-label': about }, drawing),
    );
  }
}
