/**
 * The arrays of a launch as pictures: what earlier steps accessed is tinted (darker: more often), and the tiles of the current steps are
 * outlined. One canvas per array; an offscreen canvas holds the past, so that a frame draws only what changed.
 */

import { h } from '../dom';
import { indexText, type LaunchArray, type LaunchFacts } from '../teaching';
import { accessColours, cssColour, fit, hatch, sharp, type PictureScale } from './canvas';

const WIDTH = 300;
const HEIGHT = 264;
/** In projector mode. */
const MOST_IN_ROW = 3;
const LEAST_WIDTH = 200;
const GAP = 24;

interface Picture {
  array: LaunchArray;
  canvas: HTMLCanvasElement;
  past: HTMLCanvasElement;
  scale: PictureScale;
  width: number;
  height: number;
  pen: CanvasRenderingContext2D | null;
  pastPen: CanvasRenderingContext2D | null;
}

/** The pictures of all arrays of a launch. */
export class LaunchPictures {
  readonly element = h('div.bnb-launch-arrays');
  private facts: LaunchFacts | null = null;
  private pictures: Picture[] = [];
  /** The number of steps in the past canvas. */
  private painted = 0;
  private colours: ReturnType<typeof accessColours> | null = null;
  private stored: CanvasPattern | string = '';

  /**
   * `describe` receives the text of the element under the pointer. Pictures that are not in the page take their colours from `look`, and
   * have `ratio` pixels per CSS pixel.
   */
  constructor(
    private readonly describe: (text: string) => void,
    private readonly look?: Element,
    private readonly ratio?: number,
  ) {}

  /** The arrays that the launch accesses, and their pictures. */
  get drawn(): readonly Picture[] {
    const used = new Set(this.facts?.ops.map(([array]) => array));
    return this.pictures.filter((_, i) => used.has(i));
  }

  dispose(): void {
    this.pictures = [];
  }

  show(facts: LaunchFacts): void {
    this.facts = facts;
    this.painted = 0;
    const used = new Set(facts.ops.map(([array]) => array)).size;
    const width = this.ratio ? WIDTH : this.room(used);
    this.pictures = facts.arrays.map((array) => picture(array, width, this.ratio));
    this.element.replaceChildren(...this.drawn.map((one) => this.figure(one)));
    this.colours = null;
  }

  /** The width of a picture: in projector mode, that of the window is shared by the pictures of a row. */
  private room(count: number): number {
    const all = this.element.closest('.bnb-projector') ? this.element.clientWidth : 0;
    const each = Math.floor(all / Math.min(count, MOST_IN_ROW)) - GAP;
    return all ? Math.max(LEAST_WIDTH, each) : WIDTH;
  }

  private figure(one: Picture): HTMLElement {
    const { array, canvas, scale } = one;
    const shape = `${array.dtype}[${array.shape.join(', ')}]`;
    const wrapped = array.wrapped && array.rows > 1 ? `, in rows of ${array.columns} elements` : '';
    canvas.setAttribute('aria-label', `${array.name}, ${shape}`);
    canvas.addEventListener('pointermove', (event) => {
      const row = Math.floor(event.offsetY / scale.y);
      const column = Math.floor(event.offsetX / scale.x);
      const element = row * array.columns + column;
      const total = array.shape.reduce((a, b) => a * b, 1);
      this.describe(
        column < array.columns && element < total ? `${array.name}[${indexText(element, array.shape)}]` : '',
      );
    });
    canvas.addEventListener('pointerleave', () => this.describe(''));
    return h(
      'figure.bnb-launch-array',
      {},
      h('figcaption', {}, h('code', {}, array.name), ` ${shape}`),
      canvas,
      h('p.bnb-quiet', {}, `${scale.text}${wrapped}`),
    );
  }

  /** Paints the steps `from` to `to` as current, and all earlier ones as the past. */
  paint(from: number, to: number): void {
    const pen0 = this.pictures.find((one) => one.pen)?.pen;
    if (!this.facts || !pen0) {
      return;
    }
    const look = this.look ?? this.element;
    const colours = accessColours(look);
    const { load, store, past } = colours;
    if (this.colours !== colours) {
      this.colours = colours; // the first time, and in another theme
      this.stored = hatch(pen0, store);
      this.painted = Infinity;
    }
    if (this.painted > from) {
      this.pictures.forEach((one) => one.pastPen?.clearRect(0, 0, one.width, one.height));
      this.painted = 0;
    }
    for (; this.painted < from; this.painted++) {
      this.each(this.painted, this.painted, (one, kind, x, y, w, hh) => {
        const pen = one.pastPen!;
        pen.globalAlpha = past;
        pen.fillStyle = kind === 'load' ? load : store;
        pen.fillRect(x, y, w, hh);
      });
    }
    const border = cssColour(look, '--bnb-border', '#888');
    const page = cssColour(look, '--bnb-page', '#fff');
    for (const one of this.pictures) {
      const pen = one.pen!;
      pen.fillStyle = page;
      pen.fillRect(0, 0, one.width, one.height);
      pen.drawImage(one.past, 0, 0, one.width, one.height);
      pen.strokeStyle = border;
      pen.lineWidth = 1;
      pen.strokeRect(0.5, 0.5, one.width - 1, one.height - 1);
    }
    const single = from === to;
    this.each(from, to, (one, kind, x, y, w, hh) => {
      const pen = one.pen!;
      const loads = kind === 'load';
      pen.globalAlpha = loads ? 0.35 : 0.8;
      pen.fillStyle = loads ? load : this.stored;
      pen.fillRect(x, y, w, hh);
      pen.globalAlpha = 1;
      if (single || w * hh > 40) {
        pen.strokeStyle = loads ? load : store;
        pen.lineWidth = single ? 2 : 1;
        pen.strokeRect(x + 0.5, y + 0.5, Math.max(1, w - 1), Math.max(1, hh - 1));
      }
    });
  }

  /** Calls `draw` for each rectangle of some steps, in pixels. A list of rectangles that several steps share is drawn once. */
  private each(
    from: number,
    to: number,
    draw: (one: Picture, kind: string, x: number, y: number, width: number, height: number) => void,
  ): void {
    const { steps, ops, rects } = this.facts!;
    const seen = new Set<number>();
    for (let step = from; step <= to; step++) {
      for (const [op, index] of steps[step][3]) {
        if (from < to && seen.has(index)) {
          continue;
        }
        seen.add(index);
        const one = this.pictures[ops[op][0]];
        const flat = rects[index];
        for (let i = flat[0] === -1 ? 1 : 0; i < flat.length; i += 4) {
          const x = flat[i + 2] * one.scale.x;
          const y = flat[i] * one.scale.y;
          const w = (flat[i + 3] - flat[i + 2]) * one.scale.x;
          const tall = (flat[i + 1] - flat[i]) * one.scale.y;
          draw(one, ops[op][1], x, y, Math.max(1, w), Math.max(1, tall));
        }
      }
    }
  }
}

function picture(array: LaunchArray, most: number, ratio?: number): Picture {
  const scale = fit(Math.max(1, array.rows), array.columns, most, HEIGHT);
  const width = Math.max(4, Math.ceil(array.columns * scale.x));
  const height = Math.max(4, Math.ceil(array.rows * scale.y));
  const canvas = h('canvas', { role: 'img' });
  const past = document.createElement('canvas');
  return {
    array,
    canvas,
    past,
    scale,
    width,
    height,
    pen: sharp(canvas, width, height, ratio),
    pastPen: sharp(past, width, height, ratio),
  };
}
