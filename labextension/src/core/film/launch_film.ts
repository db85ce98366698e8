/**
 * A launch as a film: a frame for each step, with the pictures of all arrays, the place in the launch, and the bytes so far. It shows what
 * the Launch view shows, in the colours of the page, and depends on neither the screen nor the size of the window.
 */

import { LaunchPlayer, type Unit } from '../launch_player';
import { accessColours, cssColour, hatch } from '../plot/canvas';
import { LaunchPictures } from '../plot/launch_pictures';
import type { LaunchFacts } from '../teaching';
import { bytesSentence, whereText } from '../views/launch_text';
import type { Film } from './film';

/** More steps than these are thinned out: an animation of some thousand frames is neither watched nor small. */
export const MOST_FRAMES = 600;

const PADDING = 16; // px, as all lengths
const GAP = 22;
const LINE = 18;
const CAPTION = 20;
const KEY = 12;
const LEAST_WIDTH = 460;
const PER_ROW = 3; // pictures
const FONT = 'system-ui, "DejaVu Sans", sans-serif';

/** What an exported animation shows. `look`: an element with the colours of the card. `speed`: steps per second. */
export interface ExportedLaunch {
  kernel: string;
  facts: LaunchFacts;
  unit: Unit;
  speed: number;
  look: Element;
}

/** Returns the steps that a film shows: all, or a number of them at even distances, with the first and the last one. */
export function chosenSteps(count: number, most = MOST_FRAMES): number[] {
  const every = Math.ceil((count - 1) / (most - 1)) || 1;
  const found = Array.from({ length: Math.ceil((count - 1) / every) }, (_, i) => i * every);
  return [...found, count - 1];
}

/** The film of a launch. `scale` pixels are one CSS pixel of the view. */
export class LaunchFilm implements Film {
  readonly canvas = document.createElement('canvas');
  readonly width: number;
  readonly height: number;
  readonly steps: readonly number[];
  private readonly player: LaunchPlayer;
  private readonly pictures: LaunchPictures;
  private readonly pen: CanvasRenderingContext2D;
  private readonly rows: LaunchPictures['drawn'][] = [];
  private readonly inner: number;
  private readonly text: string;
  private readonly page: string;
  private readonly top: number;

  /** Raises Error if the browser has no canvas. */
  constructor(
    private readonly shown: ExportedLaunch,
    private readonly scale: number,
  ) {
    const { facts, unit, look } = shown;
    this.player = new LaunchPlayer(facts, unit);
    this.steps = chosenSteps(this.player.count);
    this.pictures = new LaunchPictures(() => {}, look, scale);
    this.pictures.show(facts);
    const { drawn } = this.pictures;
    for (let i = 0; i < drawn.length; i += PER_ROW) {
      this.rows.push(drawn.slice(i, i + PER_ROW));
    }
    this.text = getComputedStyle(look).color || '#000';
    this.page = cssColour(look, '--bnb-page', '#fff');
    const widths = this.rows.map((row) => row.reduce((sum, one) => sum + one.width + GAP, -GAP));
    this.inner = Math.max(LEAST_WIDTH, ...widths);
    const pen = this.canvas.getContext('2d', { willReadFrequently: true });
    if (!pen) {
      throw new Error('This browser has no canvas to draw on.');
    }
    this.pen = pen;
    this.top = PADDING + LINE * this.mostLines() + 8;
    const heights = this.rows.map((row) => Math.max(...row.map((one) => one.height)) + CAPTION + GAP / 2);
    const bottom = heights.reduce((sum, one) => sum + one, this.top) + LINE + PADDING - 4;
    this.width = even((this.inner + 2 * PADDING) * scale);
    this.height = even(bottom * scale);
    this.canvas.width = this.width;
    this.canvas.height = this.height;
  }

  get count(): number {
    return this.steps.length;
  }

  draw(frame: number): void {
    const { pen, player } = this;
    player.go(this.steps[frame]);
    this.pictures.paint(...player.span);
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.fillStyle = this.page;
    pen.fillRect(0, 0, this.width, this.height);
    pen.fillStyle = this.text;
    pen.textBaseline = 'alphabetic';
    this.sentences().forEach((line, i) => {
      pen.font = `${i ? '' : 'bold '}13px ${FONT}`;
      pen.fillText(line, PADDING, PADDING + LINE * (i + 0.75));
    });
    let y = this.top;
    for (const row of this.rows) {
      let x = PADDING;
      for (const { array, canvas, width, height } of row) {
        pen.fillStyle = this.text;
        pen.font = `12px ${FONT}`;
        pen.fillText(`${array.name} ${array.dtype}[${array.shape.join(', ')}]`, x, y + CAPTION - 6, width);
        pen.drawImage(canvas, x, y + CAPTION, width, height);
        x += width + GAP;
      }
      y += Math.max(...row.map((one) => one.height)) + CAPTION + GAP / 2;
    }
    this.drawKey(y);
  }

  pixels(): Uint8ClampedArray {
    return this.pen.getImageData(0, 0, this.width, this.height).data;
  }

  /** Explains the colours: the same signs as in the pictures. */
  private drawKey(y: number): void {
    const { pen } = this;
    const { load, store } = accessColours(this.shown.look);
    const signs = [
      [load, 'loads', 0.35],
      [hatch(pen, store), 'stores and atomics', 0.8],
    ] as const;
    let x = PADDING;
    pen.font = `12px ${FONT}`;
    for (const [style, name, alpha] of signs) {
      pen.globalAlpha = alpha;
      pen.fillStyle = style;
      pen.fillRect(x, y, KEY, KEY);
      pen.globalAlpha = 1;
      pen.strokeStyle = name === 'loads' ? load : store;
      pen.strokeRect(x + 0.5, y + 0.5, KEY - 1, KEY - 1);
      pen.fillStyle = this.text;
      pen.fillText(name, x + KEY + 6, y + KEY - 2);
      x += KEY + 6 + pen.measureText(name).width + GAP;
    }
    const darker = 'darker: accessed more often';
    pen.fillText(darker, x, y + KEY - 2);
  }

  /** The lines above the pictures at the current step. */
  private sentences(): string[] {
    const { kernel, facts } = this.shown;
    this.pen.font = `13px ${FONT}`;
    const wrapped = [whereText(facts, this.player), bytesSentence(this.player)].flatMap((text) =>
      wrap(this.pen, text, this.inner),
    );
    return [kernel, ...wrapped];
  }

  /** The largest number of lines above the pictures, from the steps at the beginning, in the middle and at the end. */
  private mostLines(): number {
    const places = [0, Math.floor(this.count / 2), this.count - 1];
    const counts = places.map((frame) => {
      this.player.go(this.steps[frame]);
      return this.sentences().length;
    });
    return Math.max(...counts);
  }
}

const even = (x: number): number => 2 * Math.ceil(x / 2); // video codecs want it

/** Breaks a text into lines of at most a width. */
function wrap(pen: CanvasRenderingContext2D, text: string, width: number): string[] {
  const lines = [''];
  for (const word of text.split(' ')) {
    const last = lines[lines.length - 1];
    const longer = last ? `${last} ${word}` : word;
    if (last && pen.measureText(longer).width > width) {
      lines.push(word);
    } else {
      lines[lines.length - 1] = longer;
    }
  }
  return lines;
}
