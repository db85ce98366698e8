/** One tile as a grid of numbers, with a description of the element under the pointer or cursor, and a table of its row. */

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

/** The quantity that the numbers and colours of the cells show. */
export const QUANTITIES = ['warp', 'lane', 'register', 'sector', 'bank', 'box'] as const;
export type Quantity = (typeof QUANTITIES)[number];

/** Returns the quantities that exist for an op. */
export function quantitiesOf(op: TileOp): Quantity[] {
  if (op.bulk) {
    return boxes(op) > 1 ? ['box', 'bank', 'sector'] : ['bank', 'sector'];
  }
  const own: Quantity[] = op.shared ? ['bank'] : op.dot ? [] : ['sector'];
  return ['warp', 'lane', 'register', ...own];
}

const FLAT_COLUMNS = 32; // for a tile of one axis
const MAX_TABLE_ROWS = 64;

/** The tile in the grid. */
interface Shown {
  facts: Tiles;
  op: TileOp;
  access: TileAccess | undefined;
  quantity: Quantity;
  shape: number[];
  /** null: no thread holds the tile. */
  places: Places | null;
  columns: number;
  order: Int32Array | null;
}

/** Shows one tile. */
export class TileSheet {
  readonly element: HTMLElement;
  private readonly grid = grid('Elements of the tile. Use the arrow keys to move.', (r, c) =>
    this.describeCell(r, c),
  );
  private readonly description = h('p.bnb-details', { role: 'status' });
  private readonly rows = h('table.bnb-table');
  private readonly table: HTMLDetailsElement;
  private shown: Shown | null = null;

  constructor() {
    const box = h(
      'div.bnb-map-box',
      { tabindex: 0, role: 'group', 'aria-label': 'A row of the tile' },
      this.rows,
    );
    this.table = h(
      'details',
      {},
      h('summary', { title: 'Show or hide the places of these elements' }, 'This row of the tile as a table'),
      box,
    );
    this.table.addEventListener('toggle', () => this.paintTable());
    this.element = h('div', {}, this.grid.element, this.description, this.table);
  }

  /** Shows a tile. `side` selects operand 0 or 1 of a dot; -1 selects the result of a dot, or the tile of any other op. */
  show(facts: Tiles, op: TileOp, access: TileAccess | undefined, side: number, quantity: Quantity): void {
    const operand = side < 0 ? null : op.dot?.operands[side];
    const shape = operand?.shape ?? op.shape;
    const layout = operand ? operand.layout : op.layout;
    this.grid.element.hidden = this.table.hidden = layout === undefined;
    if (layout === undefined) {
      this.shown = null;
      this.description.textContent = 'The operand stays in shared memory. No thread holds it.';
      return;
    }
    const flat = shape.length < 2;
    const columns = flat ? Math.min(FLAT_COLUMNS, shape[0] ?? 1) : shape[shape.length - 1];
    const order =
      quantity === 'sector' && access ? sectors(op, access, facts.arrays[access.array ?? '']?.start) : null;
    const shown = {
      facts,
      op,
      access,
      quantity,
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
      rowHead: (r) => String(flat ? r * columns : r),
      columnHead: (c) => (flat ? `+${c}` : String(c)),
    });
    this.describeCell(this.grid.row, this.grid.column);
  }

  dispose(): void {
    this.grid.dispose();
  }

  private describeCell(row: number, column: number): void {
    if (this.shown) {
      const [element, ...rest] = elementFacts(this.shown, row * this.shown.columns + column);
      const texts = rest.map((fact) => fact.text ?? fact.value).filter(Boolean);
      this.description.textContent = `${element.value}: ${texts.join(', ')}`;
      this.paintTable();
    }
  }

  private paintTable(): void {
    const shown = this.shown;
    if (!this.table.open || !shown) {
      return;
    }
    const heads = elementFacts(shown, 0).map(({ head }) => h('th', { scope: 'col' }, head));
    const body = h('tbody');
    for (let c = 0; c < Math.min(shown.columns, MAX_TABLE_ROWS); c++) {
      const [first, ...rest] = elementFacts(shown, this.grid.row * shown.columns + c);
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
  switch (shown.quantity) {
    case 'sector':
      return shown.order ? shown.order[index] : -1;
    case 'bank':
      return bankOf(shown.op, index);
    case 'box':
      return boxOf(shown.op, index);
    default:
      return shown.places?.[shown.quantity][index] ?? -1;
  }
}

/** A cell of the table with its column head. `text` is its form in a sentence. */
interface Fact {
  head: string;
  value: string;
  text?: string;
}

/**
 * Returns the facts about an element: its coordinates and its address. For a TMA copy the box and the bank follow; for other ops the
 * warp, lane and register, and the number of other threads that hold it.
 */
function elementFacts(shown: Shown, index: number): Fact[] {
  const { op, places: held } = shown;
  const named = (head: string, value: number): Fact => ({
    head,
    value: `${value}`,
    text: `${head} ${value}`,
  });
  const found: Fact[] = [
    { head: 'element', value: `[${unravel(index, shown.shape).join(', ')}]` },
    { head: 'memory', value: memory(shown, index) },
  ];
  if (!held) {
    return [...found, named('box', boxOf(op, index)), named('bank', bankOf(op, index))];
  }
  const others = held.holders[index] - 1;
  const value = others > 0 ? `${others} other thread${others > 1 ? 's' : ''}` : '';
  return [
    ...found,
    named('warp', held.warp[index]),
    named('lane', held.lane[index]),
    named('register', held.register[index]),
    { head: 'also held by', value, text: value && `and ${value}` },
  ];
}

/** Returns the location of an element: in an array or, for an op on shared memory, in a bank. */
function memory(shown: Shown, index: number): string {
  const { facts, op, access } = shown;
  if (isOff(shown, index)) {
    return op.bulk ? 'out of bounds' : 'masked off';
  }
  const where = access ? offsetOf(access, op.shape, index) : null;
  if (where !== null) {
    return `${element(facts, access?.array ?? op.what, where)}, byte ${where * op.bytes}`;
  }
  return op.shared ? `bank ${bankOf(op, index)}` : '';
}

/** Returns the name of an array element: c[67, 5], or c + 34309 if the strides do not give coordinates. */
function element(facts: Tiles, array: string, offset: number): string {
  const at = locate(facts.arrays[array], offset);
  return at ? `${array}[${at.join(', ')}]` : `${array} ${offset < 0 ? '−' : '+'} ${Math.abs(offset)}`;
}
