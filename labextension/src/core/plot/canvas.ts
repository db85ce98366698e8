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

/** Sets the size of a canvas in CSS pixels and returns its context, scaled for the screen. Null without graphics. */
export function sharp(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
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

/** Returns the scale of a picture of `rows` × `columns` elements in a space of `width` × `height` px. */
export function fit(rows: number, columns: number, width: number, height: number): PictureScale {
  const cell = Math.floor(Math.min(width / columns, height / rows, MOST_CELL));
  if (cell >= 1) {
    return {
      x: cell,
      y: cell,
      text: cell === 1 ? '1 pixel is 1 element' : `1 element is ${cell} × ${cell} pixels`,
    };
  }
  const across = Math.max(1, Math.ceil(columns / width));
  const down = Math.max(1, Math.ceil(rows / height));
  // Equal scales keep the shape of square tiles, unless the array is very long.
  const both = Math.max(across, down);
  const even = Math.max(across, down) <= 8 * Math.min(across, down);
  const [x, y] = even ? [both, both] : [across, down];
  return { x: 1 / x, y: 1 / y, text: `1 pixel is ${y} × ${x} elements` };
}
