/** Helpers for pictures on a canvas: sharp pixels on any screen, colours that differ for colour-blind readers, and hatching. */

/** Colours of the Okabe-Ito palette for a light and a dark page. A pattern or a number says the same as the colour. */
const ACCESSES = {
  light: { load: '#0072b2', store: '#d55e00', past: 0.16 },
  dark: { load: '#56b4e9', store: '#e69f00', past: 0.22 },
} as const;
export const CLASH = '#c01f1f';

/** Returns the colours of accesses on the page of an element, and the opacity of an earlier access. */
export function accessColours(element: Element): { load: string; store: string; past: number } {
  const channels = getComputedStyle(element).color.match(/\d+(\.\d+)?/g) ?? [];
  const bright = channels.slice(0, 3).reduce((sum, c) => sum + Number(c), 0) > 3 * 128; // the text
  return bright ? ACCESSES.dark : ACCESSES.light;
}

/** How much the projector mode enlarges pictures. */
let pictureZoom = 1;

/** Sets how much the page enlarges pictures that are drawn from now on, so that they have a pixel per pixel of the screen. */
export function setPictureZoom(zoom: number): void {
  pictureZoom = zoom;
}

/** Sets the size of a canvas in CSS pixels and returns its context, with `ratio` pixels per CSS pixel. Null without graphics. */
export function sharp(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
  ratio = (window.devicePixelRatio || 1) * pictureZoom,
): CanvasRenderingContext2D | null {
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Returns a pattern of diagonal lines: `/` or, for crossed lines, `x`. */
export function hatch(
  context: CanvasRenderingContext2D,
  colour: string,
  crossed = false,
  size = 6,
): CanvasPattern | string {
  const tile = document.createElement('canvas');
  tile.width = tile.height = size;
  const pen = tile.getContext('2d');
  if (!pen) {
    return colour;
  }
  pen.strokeStyle = colour;
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
    if (crossed) {
      pen.moveTo(shift, 0);
      pen.lineTo(shift + size, size);
    }
  }
  pen.stroke();
  return context.createPattern(tile, 'repeat') ?? colour;
}

/** Returns the value of a CSS variable at an element. */
export function cssColour(element: Element, name: string, otherwise: string): string {
  return getComputedStyle(element).getPropertyValue(name).trim() || otherwise;
}

/** How many CSS pixels an element of an array takes along an axis: whole pixels for a small array, less than one for a large one. */
export interface PictureScale {
  x: number;
  y: number;
  /** Says the scale. */
  text: string;
}

const MOST_CELL = 14; // px
const LEAST_SIDE = 24; // px; a short axis gets its own scale

/** Returns the scale of a picture of `rows` × `columns` elements in a space of `width` × `height` px. */
export function fit(rows: number, columns: number, width: number, height: number): PictureScale {
  const both = evenScale(rows, columns, width, height);
  const [x, y] = both
    ? [widened(both, columns), widened(both, rows)]
    : [widened(inverse(columns / width), columns), widened(inverse(rows / height), rows)];
  return { x, y, text: scaleText(x, y) };
}

/** One scale for both axes keeps the shape of square tiles. Returns 0 for a very long array. */
function evenScale(rows: number, columns: number, width: number, height: number): number {
  const cell = Math.floor(Math.min(width / columns, height / rows, MOST_CELL));
  const across = Math.max(1, Math.ceil(columns / width));
  const down = Math.max(1, Math.ceil(rows / height));
  const [less, more] = [Math.min(across, down), Math.max(across, down)];
  return cell >= 1 ? cell : more <= 8 * less ? 1 / more : 0;
}

/** The scale of an axis that needs at least `elements` elements per pixel. */
const inverse = (elements: number): number => 1 / Math.max(1, Math.ceil(elements));

/** The scale of an axis of `count` elements: at least LEAST_SIDE pixels, as far as MOST_CELL permits. */
function widened(scale: number, count: number): number {
  if (scale * count >= LEAST_SIDE) {
    return scale;
  }
  return count > LEAST_SIDE
    ? 1 / Math.floor(count / LEAST_SIDE)
    : Math.min(MOST_CELL, Math.floor(LEAST_SIDE / count));
}

function scaleText(x: number, y: number): string {
  const [across, down] = [x, y].map((s) => Math.round(s >= 1 ? s : 1 / s));
  if (x === 1 && y === 1) {
    return '1 pixel is 1 element';
  }
  if (x <= 1 && y <= 1) {
    return `1 pixel is ${down} × ${across} elements`;
  }
  if (x >= 1 && y >= 1) {
    return `1 element is ${down} × ${across} pixels`;
  }
  const one = (scale: number, n: number): string =>
    scale > 1 ? `1 element is ${n} pixels` : `1 pixel is ${n} elements`;
  return `down, ${one(y, down)}; across, ${one(x, across)}`;
}
