/** One tile, element by element: a grid of numbers, a sentence on the element under the pointer or cursor, its row as a table. */

import { h } from '../dom';
import { grid, type Cell } from '../plot/grid';
import {
  bankOf,
  boxes,
  boxOf,
  elements,
  isOn,
  locate,
  offsetOf,
  places,
  sectors,
  unravel,
  type Places,
  type TileAccess,
  type TileOp,
  type Tiles,
} from '../tiles';

/** What the numbers and colours of the cells are. */
export type Paint = 'warp' | 'lane' | 'register' | 'sector' | 'bank' | 'box';

export function paintsOf(op: TileOp): Paint[] {
  if (op.bulk) {
    return boxes(op) > 1 ? ['box', 'bank', 'sector'] : ['bank', 'sector'];
  }
  const own: Paint[] = op.shared ? ['bank'] : op.dot ? [] : ['sector'];
  return ['warp', 'lane', 'register', ...own];
}

const FLAT = 32; // columns for a tile of one axis
const MOST = 64; // rows of the table

/** What is looked at. */
interface Shown {
  facts: Tiles;
  op: TileOp;
  access: TileAccess | undefined;
  paint: Paint;
  shape: number[];
  /** null: no thread holds the tile. */
  places: Places | null;
  columns: number;
  order: Int32Array | null;
}

export class TileSheet {
  readonly element: HTMLElement;
  private readonly grid = grid('Elements of the tile; arrow keys move', (r, c) => this.tell(r, c));
  private readonly place = h('p.bnb-story', { role: 'status' });
  private readonly rows = h('table.bnb-table');
  private readonly table: HTMLDetailsElement;
  private shown: Shown | null = null;

  constructor() {
    const box = h(
      'div.bnb-map-box',
      { tabindex: 0, role: 'group', 'aria-label': 'A row of the tile' },
      this.rows,
    );
    this.table = h('details', {}, h('summary', {}, 'This row of the tile as a table'), box);
    this.table.addEventListener('toggle', () => this.paintTable());
    this.element = h('div', {}, this.grid.element, this.place, this.table);
  }

  /** `side`: of a dot its operand 0 or 1; -1 the result, and any other op's tile. */
  show(facts: Tiles, op: TileOp, access: TileAccess | undefined, side: number, paint: Paint): void {
    const operand = side < 0 ? null : op.dot?.operands[side];
    const shape = operand?.shape ?? op.shape;
    const layout = operand ? operand.layout : op.layout;
    this.grid.element.hidden = this.table.hidden = layout === undefined;
    if (layout === undefined) {
      this.shown = null;
      this.place.textContent = 'The operand stays in shared memory: no thread holds it.';
      return;
    }
    const flat = shape.length < 2;
    const columns = flat ? Math.min(FLAT, shape[0] ?? 1) : shape[shape.length - 1];
    const order = paint === 'sector' && access ? sectors(op, access) : null;
    const shown = {
      facts,
      op,
      access,
      paint,
      shape,
      places: layout < 0 ? null : places(facts.layouts[layout]),
      columns,
      order,
    };
    this.shown = shown;
    this.grid.show({
      rows: elements(shape) / columns,
      columns,
      cell: (r, c) => cell(shown, r * columns + c),
      head: (r) => String(flat ? r * columns : r),
      top: (c) => (flat ? `+${c}` : String(c)),
    });
    this.tell(this.grid.row, this.grid.column);
  }

  dispose(): void {
    this.grid.dispose();
  }

  private tell(row: number, column: number): void {
    if (this.shown) {
      const [element, ...rest] = story(this.shown, row * this.shown.columns + column);
      const said = rest.map((fact) => fact.said ?? fact.value).filter(Boolean);
      this.place.textContent = `${element.value}: ${said.join(', ')}`;
      this.paintTable();
    }
  }

  private paintTable(): void {
    const shown = this.shown;
    if (!this.table.open || !shown) {
      return;
    }
    const heads = story(shown, 0).map(({ head }) => h('th', { scope: 'col' }, head));
    const body = h('tbody');
    for (let c = 0; c < Math.min(shown.columns, MOST); c++) {
      const [first, ...rest] = story(shown, this.grid.row * shown.columns + c);
      const cells = rest.map((fact) => h('td', {}, fact.value));
      body.append(h('tr', {}, h('th', { scope: 'row' }, first.value), ...cells));
    }
    const head = h('tr', {}, ...heads);
    this.rows.replaceChildren(h('thead', {}, head), body);
  }
}

function cell(shown: Shown, index: number): Cell {
  const number = numberOf(shown, index);
  const off = isOff(shown, index);
  return { text: off ? '·' : number < 0 ? '?' : String(number), shade: number, off };
}

function isOff({ access, op }: Shown, index: number): boolean {
  return access !== undefined && !isOn(access, op.shape, index);
}

function numberOf(shown: Shown, index: number): number {
  switch (shown.paint) {
    case 'sector':
      return shown.order ? shown.order[index] : -1;
    case 'bank':
      return bankOf(shown.op, index);
    case 'box':
      return boxOf(shown.op, index);
    default:
      return shown.places?.[shown.paint][index] ?? -1;
  }
}

/** A cell of the table under its head; `said`: the same in a sentence. */
interface Fact {
  head: string;
  value: string;
  said?: string;
}

/**
 * An element's coordinates in the tile, its place in memory; then box and bank of what the copy engine moves, else warp, lane, register,
 * and how many more threads hold it.
 */
function story(shown: Shown, index: number): Fact[] {
  const { op, places: held } = shown;
  const named = (head: string, value: number): Fact => ({
    head,
    value: `${value}`,
    said: `${head} ${value}`,
  });
  const found: Fact[] = [
    { head: 'element', value: `[${unravel(index, shown.shape).join(', ')}]` },
    { head: 'memory', value: memory(shown, index) },
  ];
  if (!held) {
    return [...found, named('box', boxOf(op, index)), named('bank', bankOf(op, index))];
  }
  const others = held.holders[index] - 1;
  const value = others > 0 ? `${others} more thread${others > 1 ? 's' : ''}` : '';
  return [
    ...found,
    named('warp', held.warp[index]),
    named('lane', held.lane[index]),
    named('register', held.register[index]),
    { head: 'also held by', value, said: value && `and ${value}` },
  ];
}

/** Where an element lies: in an array, or for ops on shared memory in a bank. */
function memory(shown: Shown, index: number): string {
  const { facts, op, access } = shown;
  if (isOff(shown, index)) {
    return op.bulk ? 'outside of the array' : 'masked off';
  }
  const where = access ? offsetOf(access, op.shape, index) : null;
  if (where !== null) {
    return `${element(facts, access?.array ?? op.what, where)}, byte ${where * op.bytes}`;
  }
  return op.shared ? `bank ${bankOf(op, index)}` : '';
}

/** An element of an array by name: c[67, 5], or where the shape does not say, c + 34309. */
function element(facts: Tiles, array: string, offset: number): string {
  const at = locate(facts.arrays[array], offset);
  return at ? `${array}[${at.join(', ')}]` : `${array} ${offset < 0 ? '−' : '+'} ${Math.abs(offset)}`;
}
