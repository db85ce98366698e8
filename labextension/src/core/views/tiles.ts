/**
 * The Tiles view: which program, warp and lane accesses each element, for one load, store, atomic or dot at a time. It shows the memory
 * transactions of the op and the order in which programs cover their output. It highlights the op in the code.
 */

import { button, h, renderBackquotes, uniqueId } from '../dom';
import type { LinkParts } from '../link_target';
import { accessAdvice } from '../access_advice';
import { split } from '../pane_switches';
import { PendingLink } from '../pending_link';
import { labelledPrograms } from '../plot/programs';
import type { ShownParts } from '../shown_parts';
import type { Store } from '../store';
import {
  programName,
  sentences,
  startSentence,
  title,
  elements,
  unpackTiles,
  verdict,
  type TileAccess,
  type TileOp,
  type Tiles as Facts,
} from '../tiles';
import type { Mounted, ViewSpec } from './spec';
import { readTileParts, selectionOf, type TileChoices, tileParts } from './tile_link';
import { quantitiesOf, TileSheet, type Quantity } from './tilesheet';

export const tiles: ViewSpec = {
  key: 'tiles',
  title: 'Tiles',
  tooltip: 'Which lanes touch which elements, and the memory transactions',
  empty: (doc) =>
    doc.tiles?.packed
      ? null
      : (doc.tiles?.why ?? 'The saved card does not contain the accesses of its kernel.'),
  mount: (panel, store) => new Tiles(panel, store),
};

class Tiles implements Mounted {
  private facts: Facts | null = null;
  private chosen = 0;
  private side = -1; // of a dot: 0 or 1 for the operands, -1 for the result
  private program = 0;
  private iteration = 0;
  private quantity: Quantity = 'warp';
  /** Why the program that a widget named is not shown. */
  private refused = '';
  private loadToken = 0;
  private requestToken = 0;
  /** What the kernel answered for the document, by program and iteration. Another document has another map. */
  private answers = new Map<string, Record<string, TileAccess>>();
  private readonly stopAsks = this.store.shown.onAsk(
    (parts) => this.facts?.ops.length && this.showWanted(parts),
  );
  readonly link = new PendingLink(
    () => tileParts(this.choices),
    (parts, missing) => this.showLink(parts, missing),
  );

  private readonly list = h('ol.bnb-stages', {
    role: 'listbox',
    tabindex: 0,
    'aria-label': 'Accesses in order',
  });
  private readonly tools = h('div.bnb-tools');
  private readonly numbers = h('ul.bnb-notes', { 'aria-label': 'Memory transactions' });
  private readonly sheet = new TileSheet();
  private readonly map = h('div.bnb-map');
  private readonly status = h('p.bnb-quiet', { role: 'status' });

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    const top = h('div.bnb-tools');
    const main = h('div.bnb-main', {}, top, this.status, this.numbers, this.sheet.element);
    const { element, toggle } = split(h('div.bnb-side', {}, this.list, this.map), main, 'accesses');
    top.append(toggle, this.tools);
    panel.append(element);
    this.listen();
    this.store.run(this.load());
  }

  update(change: string): void {
    if (change === 'document') {
      this.answers = new Map();
      this.store.run(this.load());
    } else if (change === 'host' && this.facts?.ops.length) {
      this.paintAll();
    } else if (change === 'selection') {
      this.followPinned();
      this.highlight();
    }
  }

  /** Chooses the op that a widget has pinned. */
  private followPinned(): void {
    const pinned = this.store.pinned;
    const wanted = (one: TileOp): boolean =>
      pinned?.op === null ? pinned.lines.includes(one.line) : one.op === pinned?.op;
    const at = pinned?.from === 'widget' ? (this.facts?.ops.findIndex(wanted) ?? -1) : -1;
    if (at >= 0 && at !== this.chosen) {
      this.chosen = at;
      this.side = -1;
      this.paintAll();
    }
  }

  /** Shows the program and the iteration that a widget names. */
  private showWanted(parts: Partial<ShownParts>): void {
    if (parts.program !== undefined || parts.iteration !== undefined) {
      this.takeWanted(parts);
      this.tellProgram(); // it may differ from what the widget named
      this.paintAll();
      this.store.run(this.fetch());
    }
  }

  /** Takes the program and the iteration that a widget names, or says that the program cannot be shown. */
  private takeWanted({ program = this.program, iteration = this.iteration }: Partial<ShownParts>): void {
    this.refused = this.canShow(program) ? '' : `Program ${program} is not saved. `;
    if (!this.refused) {
      this.program = program;
      this.iteration = iteration;
    }
  }

  private get choices(): TileChoices {
    const { chosen, program, iteration, quantity, side } = this;
    return { chosen, program, iteration, quantity, side };
  }

  private showLink(parts: LinkParts, missing: (sentence: string) => void): boolean {
    if (!this.facts?.ops.length) {
      return false;
    }
    const last = { access: this.facts.ops.length - 1, program: this.total - 1 };
    const found = readTileParts(parts, last, this.choices, missing);
    if (!this.canShow(found.program)) {
      missing(`Program ${found.program} is not saved`);
      found.program = this.program;
    }
    Object.assign(this, found);
    this.paintAll();
    this.store.run(this.fetch());
    return true;
  }

  private canShow(program: number): boolean {
    const saved = this.savedPrograms;
    return saved ? saved.includes(program) : program >= 0 && program < this.total;
  }

  key(event: KeyboardEvent): boolean {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by && this.facts) {
      this.advance(by);
    }
    return by !== undefined;
  }

  dispose(): void {
    this.stopAsks();
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
        this.hoverOp(Number(found.dataset.op));
      }
    });
    this.list.addEventListener('pointerleave', () => this.store.hover(null));
    this.list.addEventListener('focus', () => this.facts && this.hoverOp(this.chosen));
    this.list.addEventListener('blur', () => this.store.hover(null));
    this.list.addEventListener('keydown', (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by && this.facts) {
        this.choose(Math.max(0, Math.min(this.facts.ops.length - 1, this.chosen + by)));
        this.hoverOp(this.chosen);
        event.preventDefault();
      }
    });
  }

  private async load(): Promise<void> {
    const token = ++this.loadToken;
    const part = this.store.doc.tiles;
    let found: Facts | null = null;
    let why = part?.why ?? '';
    if (part?.packed) {
      found = await unpackTiles(part, this.store);
      why = 'The accesses in this card cannot be read.';
    }
    if (token !== this.loadToken) {
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
    this.iteration = 0;
    this.takeWanted(this.store.shown.wanted);
    if (this.chosen < 0) {
      this.clear();
      this.status.textContent = 'The kernel has no memory access and no dot.';
      return;
    }
    this.paintAll();
    this.store.run(this.fetch());
    this.followPinned();
    this.link.retry();
  }

  /** Removes the content of the previous document. */
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
    const saved = this.iteration ? undefined : this.facts!.programs[this.program];
    return saved ?? this.answers.get(`${this.program}:${this.iteration}`);
  }

  private get access(): TileAccess | undefined {
    return this.accesses?.[this.op.op];
  }

  /** The saved programs. null: a live kernel can supply all programs. */
  private get savedPrograms(): number[] | null {
    const saved = Object.keys(this.facts!.programs)
      .map(Number)
      .sort((a, b) => a - b);
    return this.store.host.request && saved.length < this.total ? null : saved;
  }

  // ---- selection

  private choose(op: number): void {
    this.chosen = op;
    this.side = -1;
    this.paintAll();
    this.store.pin(selectionOf(this.store, this.op));
  }

  private hoverOp(op: number): void {
    this.store.hover(selectionOf(this.store, this.facts!.ops[op]));
  }

  advance(by: number): void {
    if (!this.facts) {
      return;
    }
    const saved = this.savedPrograms;
    if (!saved) {
      this.selectProgram(this.program + by);
      return;
    }
    const at = saved.indexOf(this.program);
    this.selectProgram(saved[Math.max(0, Math.min(saved.length - 1, at + by))]);
  }

  private selectProgram(program: number, iteration = 0): void {
    if (!this.canShow(program)) {
      return;
    }
    this.refused = '';
    this.program = program;
    this.iteration = iteration;
    this.tellProgram();
    this.paintAll();
    this.store.run(this.fetch());
  }

  /** Requests a program that the document does not contain from the kernel. */
  private async fetch(): Promise<void> {
    const { program, iteration, answers } = this;
    const request = this.store.host.request;
    if (this.accesses || !request) {
      return;
    }
    const token = ++this.requestToken;
    this.status.textContent = 'Requesting the program from the kernel…';
    try {
      const content = { program, iteration };
      const answer = (await request('tiles', content)) as { accesses: Record<string, TileAccess> };
      answers.set(`${program}:${iteration}`, answer.accesses);
      if (token === this.requestToken && answers === this.answers) {
        this.paintAll();
      }
    } catch (error) {
      if (token === this.requestToken && answers === this.answers) {
        this.status.textContent = String((error as Error).message);
      }
    }
  }

  // ---- painting

  private paintAll(): void {
    this.sheet.element.hidden = false;
    if (!quantitiesOf(this.op).includes(this.quantity)) {
      this.quantity = quantitiesOf(this.op)[0];
    }
    this.paintList();
    this.paintTools();
    this.paintNumbers();
    this.sheet.show(this.facts!, this.op, this.access, this.side, this.quantity);
    this.paintMap();
  }

  private tellProgram(): void {
    this.store.shown.tell({ program: this.program, iteration: this.iteration });
  }

  private paintList(): void {
    const rows = this.facts!.ops.map((op, i) => {
      const bad = accessAdvice(op, this.accesses?.[op.op]) !== null;
      return h(
        'li.bnb-stage',
        { role: 'option', id: uniqueId('tile'), 'data-op': i, 'aria-selected': String(i === this.chosen) },
        h('span.bnb-stage-name', {}, title(op)),
        h('span.bnb-stage-effect', {}, op.line ? `line ${op.line}` : ''),
        h(
          'span.bnb-stage-time.bnb-verdict',
          {},
          bad ? '△ ' : '',
          this.accesses || op.shared || op.dot ? verdict(op, this.accesses?.[op.op]) : '…',
        ),
      );
    });
    this.list.replaceChildren(...rows);
    this.list.setAttribute('aria-activedescendant', rows[this.chosen]?.id ?? '');
    rows[this.chosen]?.scrollIntoView?.({ block: 'nearest' });
    this.highlight();
  }

  private highlight(): void {
    const selected = this.store.selection;
    for (const row of this.list.querySelectorAll<HTMLElement>('[data-op]')) {
      const op = this.facts?.ops[Number(row.dataset.op)];
      row.classList.toggle(
        'bnb-highlight',
        !!op && !!selected && selected.from !== 'tiles' && selected.lines.includes(op.line),
      );
    }
  }

  private paintTools(): void {
    const focused = (document.activeElement as HTMLElement | null)?.dataset?.tool;
    const savedPrograms = this.savedPrograms;
    const list = savedPrograms ?? [];
    const input = h('input', {
      type: 'range',
      min: 0,
      max: (savedPrograms ? list.length : this.total) - 1,
      step: 1,
      value: savedPrograms ? Math.max(0, list.indexOf(this.program)) : this.program,
      'aria-label': 'Program',
      title: 'The program whose accesses are shown (← →)',
      'aria-valuetext': programName(this.program, this.facts!.grid, this.facts!.order),
      'data-tool': 'program',
    });
    input.addEventListener('input', () =>
      this.selectProgram(savedPrograms ? list[Number(input.value)] : Number(input.value)),
    );
    const quantity = h('select.bnb-select', {
      'aria-label': 'Numbers and colours',
      title: 'What the numbers and colours of the elements show',
      'data-tool': 'quantity',
    });
    quantity.append(
      ...quantitiesOf(this.op).map((q) => h('option', { value: q, selected: q === this.quantity }, q)),
    );
    quantity.addEventListener('change', () => {
      this.quantity = quantity.value as Quantity;
      this.sheet.show(this.facts!, this.op, this.access, this.side, this.quantity);
    });
    this.tools.replaceChildren(
      button('‹', () => this.advance(-1), {
        'aria-label': 'Previous program',
        title: 'Previous program (←)',
        'data-tool': 'previous',
      }),
      input,
      button('›', () => this.advance(1), {
        'aria-label': 'Next program',
        title: 'Next program (→)',
        'data-tool': 'next',
      }),
      h('span.bnb-program-name', {}, programName(this.program, this.facts!.grid, this.facts!.order)),
      ...this.iterationControl(),
      h('label', {}, 'show ', quantity),
      ...this.sideControl(),
    );
    if (focused) {
      this.tools.querySelector<HTMLElement>(`[data-tool="${focused}"]`)?.focus();
    }
    this.status.textContent =
      savedPrograms && savedPrograms.length < this.total
        ? `${this.refused}Saved programs: ${savedPrograms.join(', ')}. A live kernel can show all ${this.total}.`
        : '';
  }

  /** Creates the control for the iteration of the enclosing loop. */
  private iterationControl(): HTMLElement[] {
    const iterations = this.access?.iterations;
    if (iterations === undefined) {
      return [];
    }
    if (iterations === null || !this.store.host.request) {
      const text = iterations === null ? 'first iteration of the loop' : `first of ${iterations} iterations`;
      return [h('span.bnb-quiet', {}, text)];
    }
    const input = h('input.bnb-filter', {
      type: 'number',
      min: 0,
      max: iterations - 1,
      value: this.iteration,
      title: 'The iteration of the loop',
      'data-tool': 'iteration',
    });
    input.addEventListener('change', () => {
      const wanted = Math.floor(Number(input.value)) || 0;
      this.selectProgram(this.program, Math.max(0, Math.min(iterations - 1, wanted)));
    });
    return [h('label', {}, 'iteration ', input, ` of ${iterations}`)];
  }

  /** Creates the control for the tile of a dot: the result or an operand. */
  private sideControl(): HTMLElement[] {
    if (!this.op.dot) {
      return [];
    }
    const choice = h('select.bnb-select', {
      'aria-label': 'Tile of the dot',
      title: 'An operand or the result of the dot',
      'data-tool': 'side',
    });
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
    const start = known ? startSentence(this.facts!, this.access) : '';
    const texts = known ? [...sentences(this.op, this.access), ...(start ? [start] : [])] : [];
    this.numbers.replaceChildren(...texts.map((text) => h('li', {}, ...renderBackquotes(text))));
    this.numbers.firstElementChild?.classList.add('bnb-verdict');
    const change = known
      ? accessAdvice(this.op, this.access, this.facts!.arrays[this.access?.array ?? ''])
      : null;
    if (change) {
      this.numbers.append(h('li.bnb-advice', {}, ...renderBackquotes(change)));
    }
  }

  private paintMap(): void {
    const { map } = this.facts!;
    const choose = (program: number): void => this.selectProgram(program);
    this.map.replaceChildren(...(map ? labelledPrograms(map, this.total, this.program, choose) : []));
  }
}
