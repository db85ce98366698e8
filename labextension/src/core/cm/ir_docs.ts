/** A tooltip on words of the IR: the meaning of an op, an attribute or a type, and a layout in words with a picture. */

import { Facet, type Extension } from '@codemirror/state';
import { type EditorView, hoverTooltip } from '@codemirror/view';

import { h, svg } from '../dom';
import { explainIr, type LayoutBits, parseLayout } from '../explain/ir';

/** The table of layouts of a listing that does not show it. */
export const layoutTable = Facet.define<readonly string[], readonly string[]>({
  combine: (values) => values[0] ?? [],
});

function layoutsOf(view: EditorView): readonly string[] {
  const given = view.state.facet(layoutTable);
  const found: string[] = [];
  for (const line of given.length ? [] : view.state.doc.iterLines()) {
    if (!line.startsWith('#')) {
      break;
    }
    found.push(line);
  }
  return given.length ? given : found;
}

/** The tooltip of a listing of IR. `isIr` tells whether the listing shows IR now. */
export function irDocs(isIr: () => boolean): Extension {
  return hoverTooltip(
    (view, position) => {
      const line = view.state.doc.lineAt(position);
      const found = isIr() ? explainIr(line.text, position - line.from, layoutsOf(view)) : null;
      if (!found) {
        return null;
      }
      const bits = found.layout ? parseLayout(found.layout) : null;
      const picture = bits && layoutPicture(bits);
      const dom = h('div.bnb-tooltip', {}, h('code', {}, found.word), ` ${found.text}`, picture);
      return {
        pos: line.from + found.from,
        end: line.from + found.from + found.word.length,
        above: true,
        create: () => ({ dom }),
      };
    },
    { hoverTime: 200 },
  );
}

const MOST_CELLS = 32; // per axis; a larger tile is shown by its first elements
const CELL = 6;

/** A small picture of a tile: a colour for each warp, and a frame around the elements of the first thread. */
export function layoutPicture(layout: LayoutBits): SVGSVGElement | null {
  const [columns, rows] = [layout.shape[layout.shape.length - 1], layout.shape[layout.shape.length - 2] ?? 1];
  if (layout.shape.length > 2) {
    return null;
  }
  const [width, height] = [Math.min(columns, MOST_CELLS), Math.min(rows, MOST_CELLS)];
  const warps = owners(layout.warp, [...layout.lane, ...layout.reg]);
  const first = owners([], layout.reg);
  const cells = [];
  for (let r = 0; r < height; r++) {
    for (let c = 0; c < width; c++) {
      const element = r * columns + c;
      const mine = first.has(element);
      cells.push(
        svg('rect', {
          x: c * CELL + 0.5,
          y: r * CELL + 0.5,
          width: CELL - 1,
          height: CELL - 1,
          class: `bnb-warp-${(warps.get(element) ?? 0) % 8}${mine ? ' bnb-first-thread' : ''}`,
        }),
      );
    }
  }
  const cut = width < columns || height < rows ? `, the first ${height} x ${width} elements` : '';
  const label = `Colour: warp. Framed: the elements of thread 0${cut}.`;
  const [w, t] = [width * CELL, height * CELL];
  return svg(
    'svg',
    {
      class: 'bnb-layout-picture',
      width: w,
      height: t,
      viewBox: `0 0 ${w} ${t}`,
      role: 'img',
      'aria-label': label,
    },
    svg('title', {}, label),
    ...cells,
  );
}

/** Maps each element that some bits reach to the number that `outer` gives; with no `outer` bits, to 0. */
function owners(outer: readonly number[], inner: readonly number[]): Map<number, number> {
  const found = new Map<number, number>();
  for (let o = 0; o < 1 << outer.length; o++) {
    for (let i = 0; i < 1 << inner.length; i++) {
      const element = combine(outer, o) ^ combine(inner, i);
      if (!found.has(element)) {
        found.set(element, o);
      }
    }
  }
  return found;
}

function combine(bits: readonly number[], value: number): number {
  return bits.reduce((sum, bit, i) => ((value >> i) & 1 ? sum ^ bit : sum), 0);
}
