/**
 * A scrollable grid of numbered cells. It draws only the visible cells, so a tile can have any size. Each cell shows its number, so
 * the colour is not the only sign. The arrow keys move a cursor, and the grid reports the cell under the pointer or cursor.
 */

import { h, svg } from '../dom';

/** One cell of the grid. */
export interface Cell {
  text: string;
  /** The index of the colour, modulo SHADES. -1: none. */
  shade: number;
  /** Whether the element is masked off. */
  off: boolean;
}

/** The content of the grid. */
export interface Sheet {
  rows: number;
  columns: number;
  cell(row: number, column: number): Cell;
  /** Returns the label of a row. */
  rowHead(row: number): string;
  /** Returns the label of a column. */
  columnHead(column: number): string;
}

/** A mounted grid. */
export interface Grid {
  element: HTMLElement;
  show(sheet: Sheet): void;
  readonly row: number;
  readonly column: number;
  dispose(): void;
}

export const SHADES = 8;
const WIDTH = 24;
const HEIGHT = 20;
const MARGIN = 44; // px of the row labels
const OVERSCAN = 2; // cells drawn beyond the visible area

/** Creates a grid. `onCell` receives the cell under the pointer or cursor. */
export function grid(label: string, onCell: (row: number, column: number, settled: boolean) => void): Grid {
  const drawing = svg('svg', { class: 'bnb-sheet', 'aria-hidden': 'true' });
  const element = h('div.bnb-sheet-box', { tabindex: 0, role: 'application', 'aria-label': label }, drawing);
  let sheet: Sheet | null = null;
  let row = 0;
  let column = 0;
  let frame = 0;

  function draw(): void {
    frame = 0;
    if (!sheet) {
      return;
    }
    const { scrollLeft: x, scrollTop: y } = element;
    const wide = element.clientWidth || 640;
    const high = element.clientHeight || 360;
    const left = Math.max(0, Math.floor(x / WIDTH) - OVERSCAN);
    const right = Math.min(sheet.columns, Math.ceil((x + wide) / WIDTH) + OVERSCAN);
    const top = Math.max(0, Math.floor(y / HEIGHT) - OVERSCAN);
    const bottom = Math.min(sheet.rows, Math.ceil((y + high) / HEIGHT) + OVERSCAN);
    const shapes: Element[] = [];
    for (let r = top; r < bottom; r++) {
      for (let c = left; c < right; c++) {
        shapes.push(...drawCell(sheet.cell(r, c), MARGIN + c * WIDTH, HEIGHT + r * HEIGHT));
      }
    }
    shapes.push(
      svg('rect', {
        class: 'bnb-cursor',
        x: MARGIN + column * WIDTH + 1,
        y: HEIGHT + row * HEIGHT + 1,
        width: WIDTH - 2,
        height: HEIGHT - 2,
      }),
      svg('rect', { class: 'bnb-heads', x, y, width: wide, height: HEIGHT }),
    );
    for (let c = left; c < right; c++) {
      shapes.push(drawHead(sheet.columnHead(c), MARGIN + (c + 0.5) * WIDTH, y + HEIGHT - 6, 'middle'));
    }
    shapes.push(svg('rect', { class: 'bnb-heads', x, y, width: MARGIN, height: high }));
    for (let r = Math.max(top, Math.floor(y / HEIGHT)); r < bottom; r++) {
      shapes.push(drawHead(sheet.rowHead(r), x + MARGIN - 5, HEIGHT + (r + 1) * HEIGHT - 6, 'end'));
    }
    shapes.push(svg('rect', { class: 'bnb-heads', x, y, width: MARGIN, height: HEIGHT }));
    drawing.replaceChildren(...shapes);
  }

  const scheduleDraw = (): void => {
    frame = frame || requestAnimationFrame(draw);
  };
  const resized = typeof ResizeObserver === 'undefined' ? null : new ResizeObserver(scheduleDraw);
  resized?.observe(element);

  function at(event: MouseEvent): [number, number] | null {
    const box = drawing.getBoundingClientRect();
    const scale = Number(drawing.getAttribute('width')) / box.width || 1; // projector mode enlarges the drawing
    const c = Math.floor(((event.clientX - box.left) * scale - MARGIN) / WIDTH);
    const r = Math.floor(((event.clientY - box.top) * scale - HEIGHT) / HEIGHT);
    return sheet && r >= 0 && c >= 0 && r < sheet.rows && c < sheet.columns ? [r, c] : null;
  }

  function move(r: number, c: number): void {
    if (!sheet) {
      return;
    }
    row = Math.max(0, Math.min(sheet.rows - 1, r));
    column = Math.max(0, Math.min(sheet.columns - 1, c));
    const x = column * WIDTH;
    const y = row * HEIGHT;
    element.scrollLeft = Math.min(x, Math.max(element.scrollLeft, x + WIDTH + MARGIN - element.clientWidth));
    element.scrollTop = Math.min(y, Math.max(element.scrollTop, y + 2 * HEIGHT - element.clientHeight));
    draw();
    onCell(row, column, true);
  }

  element.addEventListener('scroll', scheduleDraw);
  element.addEventListener('pointermove', (event) => {
    const place = at(event);
    if (place) {
      onCell(place[0], place[1], false);
    }
  });
  element.addEventListener('pointerleave', () => onCell(row, column, false));
  element.addEventListener('click', (event) => {
    const place = at(event);
    if (place) {
      move(...place);
    }
  });
  element.addEventListener('keydown', (event) => {
    const page = Math.max(1, Math.floor(element.clientHeight / HEIGHT) - 2);
    const to: Record<string, [number, number]> = {
      ArrowDown: [row + 1, column],
      ArrowUp: [row - 1, column],
      ArrowRight: [row, column + 1],
      ArrowLeft: [row, column - 1],
      PageDown: [row + page, column],
      PageUp: [row - page, column],
      Home: [row, 0],
      End: [row, (sheet?.columns ?? 1) - 1],
    };
    const next = to[event.key];
    if (next) {
      move(...next);
      event.preventDefault();
    }
  });
  return {
    element,
    show(next) {
      sheet = next;
      row = Math.min(row, next.rows - 1);
      column = Math.min(column, next.columns - 1);
      drawing.setAttribute('width', String(MARGIN + next.columns * WIDTH));
      drawing.setAttribute('height', String(HEIGHT + next.rows * HEIGHT));
      draw();
    },
    get row() {
      return row;
    },
    get column() {
      return column;
    },
    dispose() {
      resized?.disconnect();
      cancelAnimationFrame(frame);
    },
  };
}

function drawCell(cell: Cell, x: number, y: number): Element[] {
  const kind = cell.off ? 'bnb-off' : `bnb-shade-${cell.shade < 0 ? 'none' : cell.shade % SHADES}`;
  const box = { x: x + 0.5, y: y + 0.5, width: WIDTH - 1, height: HEIGHT - 1 };
  const place = { x: x + WIDTH / 2, y: y + HEIGHT - 6, 'text-anchor': 'middle' };
  return [
    svg('rect', { class: `bnb-cell ${kind}`, ...box }),
    svg(
      'text',
      {
        class: cell.off ? 'bnb-off-text' : cell.text.length > 3 ? 'bnb-cell-text bnb-long' : 'bnb-cell-text',
        ...place,
      },
      cell.text,
    ),
  ];
}

function drawHead(text: string, x: number, y: number, anchor: string): Element {
  return svg('text', { class: 'bnb-head-text', x, y, 'text-anchor': anchor }, text);
}
