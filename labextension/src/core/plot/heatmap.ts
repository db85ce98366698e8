/** A heat map of a sweep over two parameters: a cell per point, with its number, and a bar that explains the colours. */

import { scaleLinear } from 'd3-scale';

import { svg } from '../dom';
import type { Sweep } from '../schema';
import { EDGE, explore, frame, HEIGHT, WIDTH } from './frame';
import { digits } from './numbers';
import type { PlottedSeries } from './series';

/** Room for the bar of colours. */
const RIGHT = 96;
/** Cells of a heat map with their number. */
const MOST_LABELLED = 120;
/** Of the scale "cividis", whose lightness grows in equal steps: colour-blind people and a grey print keep the order. */
const COLOURS = ['#00224e', '#575d6d', '#a59c74', '#fee838'];

/** Draws the medians of a series. */
export function heatMap(
  part: Sweep,
  series: PlottedSeries,
  unit: string,
  onDescribe: (text: string) => void,
): SVGSVGElement {
  const second = part.second!;
  const known = series.median.filter((v): v is number => v !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const stops = COLOURS.map((_, i) => low + ((high - low) * i) / (COLOURS.length - 1));
  const colour = scaleLinear<string>(stops, COLOURS).clamp(true);
  const width = (WIDTH - RIGHT - EDGE.left) / part.values.length;
  const height = (HEIGHT - EDGE.bottom - EDGE.top) / second.values.length;
  const x = (i: number): number => EDGE.left + i * width;
  const y = (j: number): number => HEIGHT - EDGE.bottom - (j + 1) * height;
  const plot = frame(
    `${series.label}: ${unit} over ${part.axis} and ${second.axis}`,
    { title: part.axis, ticks: part.values.map((v, i) => ({ at: x(i) + width / 2, label: String(v) })) },
    { title: second.axis, ticks: second.values.map((v, j) => ({ at: y(j) + height / 2, label: String(v) })) },
    RIGHT,
  );
  const labelled = series.median.length <= MOST_LABELLED;
  const rows = second.values.map((b, j) =>
    part.values.map((a, i) => {
      const value = series.median[i * second.values.length + j] ?? null;
      const place = `${part.axis} = ${a}, ${second.axis} = ${b}`;
      const said = value === null ? 'not measured' : `${digits(value)} ${unit}`;
      const cell = svg(
        'g',
        {
          class: 'bnb-mark bnb-cell',
          role: 'img',
          'aria-label': `${series.label}, ${place}: ${said}`,
          tabindex: -1,
        },
        svg('rect', {
          x: x(i) + 1,
          y: y(j) + 1,
          width: width - 2,
          height: height - 2,
          class: value === null ? 'bnb-cell-missing' : null,
          style: value === null ? null : `fill: ${colour(value)}`,
        }),
      ) as SVGGElement;
      if (labelled) {
        const dark = value !== null && value < (low + high) / 2;
        cell.append(
          svg(
            'text',
            {
              x: x(i) + width / 2,
              y: y(j) + height / 2 + 4,
              'text-anchor': 'middle',
              class: value === null ? null : dark ? 'bnb-cell-light' : 'bnb-cell-dark',
            },
            value === null ? '–' : digits(value),
          ),
        );
      }
      return cell;
    }),
  );
  plot.area.append(...rows.flat(), ...(known.length ? colourBar(colour, low, high, unit) : []));
  explore([...rows].reverse(), onDescribe); // the arrow up goes to the row above
  return plot.element;
}

const STEPS = 40;

function colourBar(colour: (value: number) => string, low: number, high: number, unit: string): SVGElement[] {
  const [left, top, bottom] = [WIDTH - RIGHT + 24, EDGE.top + 20, HEIGHT - EDGE.bottom];
  const step = (bottom - top) / STEPS;
  const bar = Array.from({ length: STEPS }, (_, i) =>
    svg('rect', {
      x: left,
      y: bottom - (i + 1) * step,
      width: 14,
      height: step + 0.5,
      style: `fill: ${colour(low + ((high - low) * i) / (STEPS - 1))}`,
    }),
  );
  const text = (at: number, said: string): SVGElement =>
    svg('text', { class: 'bnb-plot-label', x: left + 18, y: at, 'text-anchor': 'start' }, said);
  return [...bar, text(top + 8, digits(high)), text(bottom, digits(low)), text(top - 8, unit)];
}
