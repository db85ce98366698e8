/** A map of the programs of a launch over the array that they write, numbered in launch order. It shows the program swizzle. */

import { h, svg } from '../dom';
import { locate, type ProgramMap } from '../tiles';
import { SHADES } from './grid';

const WIDTH = 276;
const MAX_PATH_PROGRAMS = 256;
const DIGIT_WIDTH = 6.2; // px

interface Place {
  row: number;
  column: number;
}

/** Returns the position of each program in units of tiles, or null if unknown. Wraps a 1-D array into rows. */
export function positions(map: ProgramMap): (Place | null)[] {
  const rank = map.shape.length;
  const across = Math.min(16, map.origins.length);
  return map.origins.map((origin) => {
    const at = origin === null ? null : locate(map, origin);
    if (!at) {
      return null;
    }
    if (rank < 2) {
      const number = rank ? at[0] / Math.max(1, map.extent[0]) : 0;
      return { row: Math.floor(number / across), column: number % across };
    }
    let row = 0;
    for (let axis = 0; axis < rank - 1; axis++) {
      row = row * Math.ceil(map.shape[axis] / map.extent[axis]) + at[axis] / map.extent[axis];
    }
    return { row, column: at[rank - 1] / map.extent[rank - 1] };
  });
}

/** Returns the accessible description of the map, with the positions of the first programs. */
export function describe(map: ProgramMap): string {
  const first = map.origins.slice(0, 8).flatMap((origin, number) => {
    const at = origin === null ? null : locate(map, origin);
    return at ? [`${number} at ${map.array}[${at.join(', ')}]`] : [];
  });
  const more = map.origins.length > 8 ? '; and so on' : '';
  return `Programs in launch order over ${map.array}: ${first.join('; ')}${more}.`;
}

/** Creates the map with a sentence on what it shows. `total` is the number of programs of the launch. */
export function labelledPrograms(
  map: ProgramMap,
  total: number,
  current: number,
  choose: (program: number) => void,
): HTMLElement[] {
  const more = total > map.origins.length ? `, the first ${map.origins.length} of ${total}` : '';
  const about = `Programs over ${map.array}, numbered in launch order${more}`;
  const drawing = programs(map, current, choose);
  return [
    h('p.bnb-quiet', {}, about),
    h('div.bnb-map-box', { tabindex: 0, role: 'group', 'aria-label': about }, drawing),
  ];
}

/** Draws the map. A click on a program calls `choose`. */
function programs(map: ProgramMap, current: number, choose: (program: number) => void): SVGSVGElement {
  const places = positions(map);
  const known = places.filter((p): p is Place => p !== null);
  const rows = Math.max(...known.map((p) => Math.floor(p.row) + 1), 1);
  const columns = Math.max(...known.map((p) => Math.floor(p.column) + 1), 1);
  const wide = Math.max(5, Math.min(44, WIDTH / columns));
  const high = Math.max(6, Math.min(24, Math.max(15, 240 / rows)));
  const numbered = wide >= String(map.origins.length - 1).length * DIGIT_WIDTH + 4;
  const drawing = svg('svg', {
    class: 'bnb-programs',
    width: columns * wide + 2,
    height: rows * high + 2,
    role: 'img',
    'aria-label': describe(map),
  });
  const texts: Element[] = [];
  const centres: string[] = [];
  places.forEach((place, number) => {
    if (!place) {
      return;
    }
    const x = 1 + place.column * wide;
    const y = 1 + place.row * high;
    const shade = Math.floor((number * SHADES) / places.length);
    const now = number === current ? ' bnb-program-now' : '';
    const box = svg(
      'rect',
      {
        class: `bnb-program bnb-order-${shade}${now}`,
        'data-program': number,
        x: x + 1,
        y: y + 1,
        width: wide - 2,
        height: high - 2,
      },
      svg('title', {}, `program ${number}`),
    );
    box.addEventListener('click', () => choose(number));
    drawing.append(box);
    centres.push(`${x + wide / 2},${y + high / 2}`);
    if (numbered) {
      const at = { x: x + wide / 2, y: y + high / 2 + 4, 'text-anchor': 'middle', class: 'bnb-cell-text' };
      texts.push(svg('text', at, String(number)));
    }
  });
  if (places.length <= MAX_PATH_PROGRAMS) {
    drawing.append(svg('polyline', { class: 'bnb-order-path', points: centres.join(' ') }));
  }
  drawing.append(...texts);
  return drawing;
}
