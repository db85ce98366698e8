/**
 * The frame of a plot: an SVG that scales with its column, two axes with a grid, and points that the keyboard can reach.
 *
 * The scales come from d3-scale. This module draws the ticks itself, so that the card does not need d3-selection.
 */

import type { ScaleContinuousNumeric } from 'd3-scale';
import type { SymbolType } from 'd3-shape';
import {
  symbol,
  symbolCircle,
  symbolDiamond,
  symbolSquare,
  symbolStar,
  symbolTriangle,
  symbolWye,
} from 'd3-shape';

import { svg } from '../dom';

/** A continuous scale of d3. */
export type Scale = ScaleContinuousNumeric<number, number>;

export const WIDTH = 720;
export const HEIGHT = 400;
export const EDGE = { left: 64, right: 24, top: 16, bottom: 48 };

/** Shapes and dashes that distinguish series without colour. */
export const SHAPES: readonly SymbolType[] = [
  symbolCircle,
  symbolSquare,
  symbolTriangle,
  symbolDiamond,
  symbolWye,
  symbolStar,
];
export const DASHES = ['', '7 3', '2 3', '9 3 2 3', '12 4', '4 2'];

/** An empty plot. */
export interface Frame {
  element: SVGSVGElement;
  /** The group for the data. */
  area: SVGGElement;
}

/** A tick of an axis: its position and its label. */
export interface Tick {
  at: number;
  label: string;
}

/** Creates an empty plot. `right` is the width of its right margin, `label` its accessible name. */
export function frame(
  label: string,
  x: { title: string; ticks: Tick[] },
  y: { title: string; ticks: Tick[] },
  right = EDGE.right,
): Frame {
  const area = svg('g', { class: 'bnb-plot-data' });
  const bottom = HEIGHT - EDGE.bottom;
  const element = svg('svg', {
    class: 'bnb-plot',
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: 'group',
    'aria-label': label,
  });
  const axes = svg('g', { class: 'bnb-plot-axes', 'aria-hidden': 'true' });
  for (const { at, label: text } of x.ticks) {
    axes.append(
      svg('line', { class: 'bnb-plot-grid', x1: at, x2: at, y1: EDGE.top, y2: bottom }),
      svg('text', { x: at, y: bottom + 16, 'text-anchor': 'middle' }, text),
    );
  }
  for (const { at, label: text } of y.ticks) {
    axes.append(
      svg('line', { class: 'bnb-plot-grid', x1: EDGE.left, x2: WIDTH - right, y1: at, y2: at }),
      svg('text', { x: EDGE.left - 6, y: at + 4, 'text-anchor': 'end' }, text),
    );
  }
  const middle = (EDGE.top + bottom) / 2;
  axes.append(
    svg('path', { class: 'bnb-plot-axis', d: `M${EDGE.left} ${EDGE.top}V${bottom}H${WIDTH - right}` }),
    svg('text', { x: (EDGE.left + WIDTH - right) / 2, y: HEIGHT - 10, 'text-anchor': 'middle' }, x.title),
    svg(
      'text',
      { x: 14, y: middle, transform: `rotate(-90 14 ${middle})`, 'text-anchor': 'middle' },
      y.title,
    ),
  );
  element.append(axes, area);
  return { element, area };
}

/** Returns ticks of a logarithmic scale at powers of its base, about `most` of them. */
export function powers(scale: Scale, base: 2 | 10, most: number, text: (value: number) => string): Tick[] {
  const log = (value: number) => Math.log(value) / Math.log(base);
  const [low, high] = scale.domain();
  const first = Math.ceil(log(low) - 1e-9);
  const last = Math.floor(log(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const ticks: Tick[] = [];
  for (let power = first; power <= last; power += step) {
    ticks.push({ at: scale(base ** power), label: text(base ** power) });
  }
  return ticks;
}

/** Creates a point: a shape with a larger invisible hit area. `text` is its accessible name and its description. */
export function mark(
  shape: SymbolType,
  x: number,
  y: number,
  className: string,
  text: string,
  size = 70,
): SVGGElement {
  const d = symbol(shape, size)() ?? '';
  return svg(
    'g',
    {
      class: `bnb-mark ${className}`,
      transform: `translate(${x} ${y})`,
      role: 'img',
      'aria-label': text,
      tabindex: -1,
    },
    svg('circle', { class: 'bnb-mark-hit', r: 11 }),
    svg('path', { d }),
  );
}

/**
 * Makes the marks one tab stop. The up and down arrows move between rows, the left and right arrows within a row. `onDescribe` receives
 * the text of the mark under the pointer or focus.
 */
export function explore(rows: readonly (readonly SVGGElement[])[], onDescribe: (text: string) => void): void {
  const all = rows.flat();
  all[0]?.setAttribute('tabindex', '0');
  const focus = (next: SVGGElement | undefined, event: KeyboardEvent) => {
    if (next) {
      all.forEach((m) => m.setAttribute('tabindex', m === next ? '0' : '-1'));
      next.focus();
      event.preventDefault();
    }
  };
  rows.forEach((row, r) => {
    row.forEach((m, c) => {
      const text = m.getAttribute('aria-label') ?? '';
      m.addEventListener('mouseenter', () => onDescribe(text));
      m.addEventListener('focus', () => onDescribe(text));
      m.addEventListener('keydown', (event) => {
        const near = (other?: readonly SVGGElement[]) => other?.[Math.min(c, other.length - 1)];
        const moves: Record<string, () => SVGGElement | undefined> = {
          ArrowRight: () => row[c + 1],
          ArrowLeft: () => row[c - 1],
          ArrowUp: () => near(rows[r - 1]),
          ArrowDown: () => near(rows[r + 1]),
          Home: () => row[0],
          End: () => row[row.length - 1],
        };
        if (event.key in moves) {
          focus(moves[event.key](), event);
        }
      });
    });
  });
}
