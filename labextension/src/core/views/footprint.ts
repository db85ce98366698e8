/**
 * The Footprint view: the elements of each array in the colour of the program that accesses them. Elements with several writers are red
 * and crossed, elements without a program are hatched. The findings are sentences that lead to their lines.
 */

import { button, h, renderBackquotes } from '../dom';
import { type LinkParts, numberIn } from '../link_target';
import { PendingLink } from '../pending_link';
import { placeOf } from '../launch_place';
import { onLook, programColour } from '../palettes';
import { CLASH, cssColour, hatch, sharp } from '../plot/canvas';
import type { Store } from '../store';
import {
  emptyReason,
  indexText,
  launchKey,
  load,
  mustLoad,
  programText,
  type FootprintFacts,
  type FootprintMap,
} from '../teaching';
import type { Mounted, ViewSpec } from './spec';

export const footprint: ViewSpec = {
  key: 'footprint',
  title: 'Footprint',
  tooltip: 'Which program loads and stores each element of the arrays',
  empty: (_, store) => emptyReason(store, 'footprint'),
  mount: (panel, store) => new FootprintView(panel, store),
};

const WIDTH = 620;
const HEIGHT = 360;
const MOST_CELL = 16;
const VERBS = { stores: 'stores', atomics: 'updates', loads: 'loads' } as const;
const CLASHES = 1;
const HOLES = 2;
const LEVELS = { error: '✗', warning: '△', remark: '·' } as const;

class FootprintView implements Mounted {
  private facts: FootprintFacts | null = null;
  private chosen = 0;
  private loaded = '';
  private token = 0;
  private cell = 1;
  private cursor = 0;
  private elements: number[] = [];
  private readonly choices = h('div.bnb-tools', { role: 'group', 'aria-label': 'Array and kind of access' });
  private readonly canvas = h('canvas', {
    tabindex: 0,
    role: 'img',
    'aria-label': 'Programs of the elements',
  });
  private readonly about = h('p.bnb-verdict', { 'data-part': 'about' });
  private readonly legend = h('p.bnb-legend');
  private readonly readout = h('p.bnb-details', { role: 'status' });
  private readonly findings = h('ul.bnb-findings', { 'aria-label': 'Findings' });
  private readonly status = h('p.bnb-quiet', { role: 'status' });
  private readonly picture: HTMLElement;
  private readonly stopLook: () => void;

  readonly link = new PendingLink(
    () => ({ map: String(this.chosen) }),
    (parts, missing) => this.showLink(parts, missing),
  );

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.picture = h(
      'div.bnb-footprint',
      { hidden: true }, // until there is a map to draw
      this.about,
      h('div.bnb-footprint-box', {}, this.canvas),
      this.legend,
      this.readout,
    );
    panel.append(this.findings, this.choices, this.picture, this.status);
    this.listen();
    this.stopLook = onLook(store, () => this.facts && this.paintMap(this.facts));
    this.store.run(this.load());
  }

  private showLink(parts: LinkParts, missing: (sentence: string) => void): boolean {
    if (!this.facts?.maps.length) {
      return false;
    }
    this.chosen = numberIn(parts, 'map', this.facts.maps.length - 1, missing) ?? this.chosen;
    this.paintChoices(this.facts);
    this.paintMap(this.facts);
    return true;
  }

  update(change: string): void {
    if (mustLoad(this.store, change, this.loaded, this.facts !== null)) {
      this.store.run(this.load());
    }
  }

  dispose(): void {
    this.stopLook();
  }

  private listen(): void {
    const at = (event: MouseEvent): number => {
      const column = Math.floor(event.offsetX / this.cell);
      const row = Math.floor(event.offsetY / this.cell);
      const map = this.facts?.maps[this.chosen];
      return map && column < map.columns && row < map.rows ? row * map.columns + column : -1;
    };
    this.canvas.addEventListener('pointermove', (event) => this.describe(at(event)));
    this.canvas.addEventListener('pointerleave', () => {
      this.readout.textContent = '';
      this.store.hover(null);
    });
    this.canvas.addEventListener('click', (event) => this.select(at(event)));
    this.canvas.addEventListener('keydown', (event) => {
      const map = this.facts?.maps[this.chosen];
      const columns = map?.columns ?? 1;
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
      if (map && by) {
        this.cursor = Math.max(0, Math.min(map.first.length - 1, this.cursor + by));
        this.describe(this.cursor);
      } else if (map && event.key === 'Enter') {
        this.select(this.cursor);
      } else {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    });
    this.findings.addEventListener('click', (event) => {
      const line = Number((event.target as Element).closest<HTMLElement>('[data-line]')?.dataset.line);
      if (line) {
        this.store.pin({ lines: [line], op: null, from: 'footprint' });
        placeOf(this.store).set({ line }, 'footprint');
      }
    });
  }

  private async load(): Promise<void> {
    const token = ++this.token;
    this.loaded = launchKey(this.store);
    this.status.textContent = 'Following the programs of the launch…';
    let found: { facts: FootprintFacts | null; why: string };
    try {
      found = await load<FootprintFacts>(this.store, 'footprint');
    } catch (error) {
      found = { facts: null, why: (error as Error).message };
    }
    if (token !== this.token) {
      return;
    }
    this.facts = found.facts;
    const { facts } = this;
    for (const part of [this.findings, this.choices]) {
      part.hidden = !facts;
    }
    this.picture.hidden = !facts?.maps.length;
    this.status.textContent = facts ? `${facts.scope}.` : found.why;
    if (!facts && this.store.host.request) {
      this.link.drop(); // the kernel refuses
    }
    if (facts) {
      this.chosen = Math.min(this.chosen, Math.max(0, facts.maps.length - 1));
      this.paintFindings(facts);
      this.paintChoices(facts);
      this.paintMap(facts);
      this.link.retry();
    }
  }

  private paintFindings(facts: FootprintFacts): void {
    const items = facts.findings.map((finding) =>
      h(
        'li',
        { 'data-level': finding.level },
        h('span', { 'aria-hidden': 'true' }, `${LEVELS[finding.level]} `),
        h('span', {}, ...renderBackquotes(`${finding.level}: ${finding.text}. ${sentence(finding.hint)}`)),
        ...finding.lines.map((line) =>
          h('button.bnb-link', { type: 'button', 'data-line': line }, `line ${line}`),
        ),
      ),
    );
    const none = items.length ? [] : [h('li', {}, 'The footprint finds nothing wrong.')];
    const more = facts.more ? [h('li.bnb-quiet', {}, `and ${facts.more} more`)] : [];
    this.findings.replaceChildren(...items, ...none, ...more);
  }

  private paintChoices(facts: FootprintFacts): void {
    this.choices.replaceChildren(
      ...facts.maps.map((map, i) =>
        button(
          `${map.array} · ${map.kind}`,
          () => {
            this.chosen = i;
            this.paintChoices(facts);
            this.paintMap(facts);
          },
          { 'aria-pressed': String(i === this.chosen) },
        ),
      ),
    );
  }

  private paintMap(facts: FootprintFacts): void {
    const map = facts.maps[this.chosen];
    if (!map) {
      return;
    }
    const writes = map.kind === 'stores';
    this.elements = elementsOfCells(map);
    this.readout.textContent = '';
    this.cursor = 0;
    const all = map.shape.reduce((a, b) => a * b, 1);
    const several = map.shared
      ? `${map.shared} ${map.shared === 1 ? 'element has' : 'elements have'} several programs`
      : 'no element has several programs';
    const none = map.holes ? `${map.holes} of ${all} have none` : 'every element has one';
    this.about.textContent = `${map.array} ${map.dtype}[${map.shape.join(', ')}], ${map.kind}: ${several}; ${none}.`;
    const scale =
      map.tall * map.wide > 1
        ? `1 cell is ${map.tall} × ${map.wide} elements and shows one of them`
        : '1 cell is 1 element';
    const wrapped = map.wrapped && map.rows > 1 ? `, in rows of ${map.width} elements` : '';
    const key = (look: string, text: string): HTMLElement =>
      h('span.bnb-footprint-key', { 'data-look': look }, text);
    this.legend.replaceChildren(
      key('program', 'a colour per program (8 in turn)'),
      key(writes ? 'clash' : 'shared', writes ? 'stored by several programs' : 'several programs'),
      key('hole', 'no program'),
      h('span.bnb-quiet', {}, `${scale}${wrapped}`),
    );
    this.canvas.setAttribute('aria-label', `${this.about.textContent} Use the arrow keys; Enter selects.`);
    this.draw(map, writes);
  }

  private draw(map: FootprintMap, writes: boolean): void {
    this.cell = Math.max(
      2,
      Math.min(MOST_CELL, Math.floor(Math.min(WIDTH / map.columns, HEIGHT / map.rows))),
    );
    const size = this.cell;
    const pen = sharp(this.canvas, map.columns * size, map.rows * size);
    if (!pen) {
      return;
    }
    const crossed = hatch(pen, '#fff', true, Math.max(4, Math.min(size, 6)));
    const holes = hatch(pen, cssColour(this.canvas, '--bnb-faint', '#888'));
    const shared = hatch(pen, 'rgb(0 0 0 / 45%)');
    pen.fillStyle = cssColour(this.canvas, '--bnb-page', '#fff');
    pen.fillRect(0, 0, map.columns * size, map.rows * size);
    map.first.forEach((first, i) => {
      if (this.elements[i] < 0) {
        return;
      }
      const at = [(i % map.columns) * size, Math.floor(i / map.columns) * size, size, size] as const;
      const fill = (style: string | CanvasPattern): void => {
        pen.fillStyle = style;
        pen.fillRect(...at);
      };
      if (map.marks[i] & CLASHES) {
        fill(writes ? CLASH : programColour(first, this.facts!.grid, this.store.display.palette));
        fill(writes ? crossed : shared);
      } else if (first >= 0) {
        fill(programColour(first, this.facts!.grid, this.store.display.palette));
      }
      if (first < 0 || map.marks[i] & HOLES) {
        fill(holes);
      }
    });
    pen.strokeStyle = cssColour(this.canvas, '--bnb-border', '#888');
    pen.strokeRect(0.5, 0.5, map.columns * size - 1, map.rows * size - 1);
  }

  private describe(cell: number): void {
    const map = this.facts?.maps[this.chosen];
    if (!map || cell < 0 || this.elements[cell] < 0) {
      this.readout.textContent = '';
      return;
    }
    this.cursor = cell;
    this.readout.textContent = describeCell(map, cell, this.elements[cell], this.facts!.grid);
    const line = map.op[cell] >= 0 ? map.lines[map.op[cell]] : 0;
    this.store.hover(line ? { lines: [line], op: null, from: 'footprint' } : null);
  }

  private select(cell: number): void {
    const map = this.facts?.maps[this.chosen];
    if (!map || cell < 0 || map.first[cell] < 0) {
      return;
    }
    const line = map.op[cell] >= 0 ? map.lines[map.op[cell]] : 0;
    if (line) {
      this.store.pin({ lines: [line], op: null, from: 'footprint' });
    }
    placeOf(this.store).set(
      { program: map.first[cell], iteration: Math.max(0, map.iteration[cell]), line: line || null },
      'footprint',
    );
  }
}

/** Returns a hint as a sentence; '' for none. */
function sentence(hint: string): string {
  return hint && `${hint[0].toUpperCase()}${hint.slice(1)}. `;
}

/** Returns the element that each cell shows; -1 for a cell beyond the array. */
export function elementsOfCells(map: FootprintMap): number[] {
  const total = map.shape.reduce((a, b) => a * b, 1);
  const found = map.first.map((_, i) => {
    const element = Math.floor(i / map.columns) * map.tall * map.width + (i % map.columns) * map.wide;
    return element < total ? element : -1;
  });
  for (let i = 0; i < map.moved.length; i += 2) {
    found[map.moved[i]] = map.moved[i + 1];
  }
  return found;
}

/** Describes an element: the programs that access it, in which iteration, and in which line. */
export function describeCell(
  map: FootprintMap,
  cell: number,
  element: number,
  grid: readonly number[],
): string {
  const name = `${map.array}[${indexText(element, map.shape)}]`;
  const [first, last] = [map.first[cell], map.last[cell]];
  if (first < 0) {
    return `${name}: no program ${VERBS[map.kind]} it`;
  }
  const line = map.op[cell] >= 0 && map.lines[map.op[cell]] ? `, line ${map.lines[map.op[cell]]}` : '';
  const times = map.count[cell] > 1 ? `, ${map.count[cell]} times` : '';
  const verb = VERBS[map.kind];
  if (first === last) {
    return `${name}: program ${programText(first, grid)} ${verb} it in iteration ${map.iteration[cell]}${line}${times}`;
  }
  const [low, high] = [programText(first, grid), programText(last, grid)];
  return `${name}: programs ${low} to ${high} ${verb.slice(0, -1)} it; program ${low} in iteration ${map.iteration[cell]}${line}${times}`;
}
