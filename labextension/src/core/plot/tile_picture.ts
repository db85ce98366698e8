/** A tile of values as a picture: small beside a line of the source, and large with numbers and a description of each element. */

import { h } from '../dom';
import { elementsOf, indexText, type StepValue } from '../teaching';
import { CLASH, cssColour, fit, hatch, sharp } from './canvas';

const SMALL = { width: 64, height: 20 };
const LARGE = { width: 560, height: 300 };
const CELL = { width: 46, height: 18 }; // px of a cell with its number
const FLAT_COLUMNS = 64; // for a tile of one axis

/** The elements of a value in rows and columns of its picture. */
interface Grid {
  rows: number;
  columns: number;
  /** Elements that exist; the last row of a wrapped tile may be shorter. */
  size: number;
  data: ArrayLike<number>;
}

/** Returns the grid of a value, or null if it has no elements. A tile of one axis is wrapped into rows. */
export function gridOf(value: StepValue, flat = FLAT_COLUMNS): Grid | null {
  const data = elementsOf(value);
  if (!data || !data.length) {
    return null;
  }
  const [rows, columns] = value.shown!;
  if (value.shape.length > 1) {
    return { rows, columns, size: data.length, data };
  }
  const across = Math.min(data.length, flat);
  return { rows: Math.ceil(data.length / across), columns: across, size: data.length, data };
}

/** Returns the index in its tile of an element of the stored part. */
export function tileIndex(value: StepValue, stored: number): string {
  const [, columns] = value.shown!;
  const [down, across] = value.every!;
  const row = Math.floor(stored / columns) * down;
  const column = (stored % columns) * across;
  if (value.shape.length < 2) {
    return String(column);
  }
  const width = value.shape[value.shape.length - 1];
  return indexText(row * width + column, value.shape);
}

/** Returns an element as text: all digits that its format has, true or false for a mask. */
export function numberText(value: StepValue, x: number): string {
  if (value.kind === 'u1') {
    return x ? 'true' : 'false';
  }
  return value.kind === 'f4' ? String(Number(x.toPrecision(7))) : String(x);
}

function short(value: StepValue, x: number): string {
  if (value.kind === 'u1') {
    return x ? '1' : '0';
  }
  return Number.isInteger(x) && Math.abs(x) < 1e6 ? String(x) : String(Number(x.toPrecision(3)));
}

/** Returns the background of an element: from light to dark blue, or orange for negative numbers. */
function shade(value: StepValue, x: number): string {
  if (value.kind === 'u1') {
    return x ? '#5aa9dd' : '#ffffff';
  }
  const low = value.low ?? 0;
  const high = value.high ?? low;
  const signed = low < 0 && high > 0;
  const reach = signed ? Math.max(-low, high) : high - low;
  const at = reach > 0 ? (signed ? x / reach : (x - low) / reach) : x === 0 ? 0 : 0.5;
  const strength = Math.min(1, Math.abs(at));
  const [r, g, b] = at < 0 ? [213, 94, 0] : [0, 114, 178];
  const mix = (c: number): number => Math.round(255 + (c - 255) * (0.06 + 0.8 * strength));
  return `rgb(${mix(r)} ${mix(g)} ${mix(b)})`;
}

function paint(
  pen: CanvasRenderingContext2D,
  value: StepValue,
  grid: Grid,
  wide: number,
  high: number,
  mask?: Grid | null,
): void {
  const odd = hatch(pen, CLASH, true, 5);
  const off = hatch(pen, 'rgb(110 110 110 / 70%)', false, 6);
  for (let i = 0; i < grid.size; i++) {
    const x = (i % grid.columns) * wide;
    const y = Math.floor(i / grid.columns) * high;
    const number = grid.data[i];
    pen.fillStyle = Number.isFinite(number) ? shade(value, number) : '#fff';
    pen.fillRect(x, y, Math.max(wide, 1), Math.max(high, 1));
    if (!Number.isFinite(number)) {
      pen.fillStyle = odd;
      pen.fillRect(x, y, wide, high);
    }
    if (mask && mask.size === grid.size && !mask.data[i]) {
      pen.fillStyle = off;
      pen.fillRect(x, y, wide, high);
    }
  }
}

/** Creates the small picture of a value, or null if it has no elements. */
export function thumbnail(
  value: StepValue,
  width = SMALL.width,
  height = SMALL.height,
): HTMLCanvasElement | null {
  const grid = gridOf(value, 32);
  if (!grid) {
    return null;
  }
  const canvas = h('canvas.bnb-thumbnail', { 'aria-hidden': 'true' });
  const small = document.createElement('canvas'); // one pixel per element, then enlarged without seams
  small.width = grid.columns;
  small.height = grid.rows;
  const [pen, dots] = [sharp(canvas, width, height), small.getContext('2d')];
  if (pen && dots) {
    for (let i = 0; i < grid.size; i++) {
      dots.fillStyle = Number.isFinite(grid.data[i]) ? shade(value, grid.data[i]) : CLASH;
      dots.fillRect(i % grid.columns, Math.floor(i / grid.columns), 1, 1);
    }
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, 0, 0, width, height);
  }
  return canvas;
}

/** The large picture of one value. */
export class TilePicture {
  private readonly title = h('p.bnb-verdict');
  private readonly canvas = h('canvas', { tabindex: 0, role: 'img', 'aria-label': 'Elements of a value' });
  private readonly box = h('div.bnb-tile-picture', { hidden: true }, this.canvas); // until `show` draws
  private readonly about = h('p.bnb-quiet');
  private readonly readout = h('p.bnb-details', { role: 'status' });
  readonly element = h('div.bnb-tile-detail', {}, this.title, this.box, this.readout, this.about);
  private value: StepValue | null = null;
  private name = '';
  private grid: Grid | null = null;
  private mask: Grid | null = null;
  private cell = { width: 1, height: 1 };
  private cursor = 0;

  constructor() {
    this.canvas.addEventListener('pointermove', (event) => {
      const column = Math.floor(event.offsetX / this.cell.width);
      const row = Math.floor(event.offsetY / this.cell.height);
      this.describe(row, column);
    });
    this.canvas.addEventListener('pointerleave', () => (this.readout.textContent = ''));
    this.canvas.addEventListener('keydown', (event) => {
      const columns = this.grid?.columns ?? 1;
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
      if (by && this.grid) {
        this.cursor = Math.max(0, Math.min(this.grid.size - 1, this.cursor + by));
        this.describe(Math.floor(this.cursor / columns), this.cursor % columns);
        event.preventDefault();
        event.stopPropagation();
      }
    });
  }

  /** Shows a value under a name. A mask hatches the elements that are off. */
  show(name: string, text: string, value: StepValue | null, mask: StepValue | null = null): void {
    this.value = value;
    this.name = name;
    this.grid = value && gridOf(value, 16);
    this.mask = mask && gridOf(mask, 16);
    this.cursor = 0;
    this.title.replaceChildren(h('code', {}, name), ` ${text}`);
    this.readout.textContent = '';
    this.box.hidden = !this.grid;
    this.about.textContent = value ? aboutText(value, this.mask !== null) : '';
    if (!this.grid || !value) {
      return;
    }
    this.canvas.setAttribute(
      'aria-label',
      `Elements of ${name}. ${this.about.textContent} Use the arrow keys.`,
    );
    const { rows, columns } = this.grid;
    const numbered = columns * CELL.width <= LARGE.width + 190 && rows <= 16;
    const scale = fit(rows, columns, LARGE.width, LARGE.height);
    this.cell = numbered ? CELL : { width: Math.max(1, scale.x), height: Math.max(1, scale.y) };
    const width = columns * this.cell.width;
    const height = rows * this.cell.height;
    const pen = sharp(this.canvas, width, height);
    if (!pen) {
      return;
    }
    paint(pen, value, this.grid, this.cell.width, this.cell.height, this.mask);
    if (numbered) {
      this.number(pen, value);
    }
    pen.strokeStyle = cssColour(this.element, '--bnb-border', '#888');
    pen.strokeRect(0.5, 0.5, width - 1, height - 1);
  }

  private number(pen: CanvasRenderingContext2D, value: StepValue): void {
    const { data, columns, size } = this.grid!;
    pen.font = '11px sans-serif';
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    for (let i = 0; i < size; i++) {
      const x = ((i % columns) + 0.5) * this.cell.width;
      const y = (Math.floor(i / columns) + 0.5) * this.cell.height;
      const text = short(value, data[i]);
      pen.lineWidth = 2.5;
      pen.strokeStyle = 'rgb(255 255 255 / 85%)';
      pen.strokeText(text, x, y, this.cell.width - 2);
      pen.fillStyle = '#111';
      pen.fillText(text, x, y, this.cell.width - 2);
    }
  }

  private describe(row: number, column: number): void {
    const { grid, value } = this;
    const at = row * (grid?.columns ?? 1) + column;
    if (!grid || !value || column >= grid.columns || at >= grid.size) {
      this.readout.textContent = '';
      return;
    }
    this.cursor = at;
    const off = this.mask && this.mask.size === grid.size && !this.mask.data[at] ? ', masked off' : '';
    this.readout.textContent = `${this.name}[${tileIndex(value, at)}] = ${numberText(value, grid.data[at])}${off}`;
  }
}

/** Describes a value: its range, its mask, and how much of it is stored. */
export function aboutText(value: StepValue, masked = false): string {
  const all = value.shape.reduce((a, b) => a * b, 1);
  const parts: string[] = [];
  if (value.on !== undefined) {
    parts.push(`${value.on} of ${all} are true.`);
  } else if (value.low !== undefined && value.high !== undefined) {
    const [low, high] = [value.low, value.high].map((x) => String(Number(x.toPrecision(6))));
    parts.push(low === high ? `All are ${low}.` : `From ${low} to ${high}.`);
  }
  if (value.odd) {
    parts.push(`${value.odd} ${value.odd === 1 ? 'is' : 'are'} infinite or NaN (red).`);
  }
  if (masked) {
    parts.push('Hatched elements are masked off.');
  }
  const [down, across] = value.every ?? [1, 1];
  if (down > 1 || across > 1) {
    const which = value.shape.length < 2 ? `element ${across}` : `row ${down} and every column ${across}`;
    parts.push(`The picture has 1 of ${down * across} elements: every ${which}.`);
  }
  return parts.join(' ');
}
