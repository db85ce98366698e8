/**
 * Blank space that keeps the two lines of an op next to each other inside a run of changes. The merge view aligns the ends of such a run
 * only, and draws adjacent hunks as one. The space is measured, because lines are wrapped at the width of the pane.
 */

import { StateEffect, StateField, type Extension, type Range } from '@codemirror/state';
import { BlockType, Decoration, type DecorationSet, EditorView, WidgetType } from '@codemirror/view';

import { h } from '../dom';
import type { Hunk } from '../hunks';

class BlankSpace extends WidgetType {
  constructor(private readonly pixels: number) {
    super();
  }

  toDOM(): HTMLElement {
    const element = h('div.bnb-blank-lines', { 'aria-hidden': 'true' });
    element.style.height = `${this.pixels}px`;
    return element;
  }

  get estimatedHeight(): number {
    return this.pixels;
  }

  eq(other: BlankSpace): boolean {
    return other.pixels === this.pixels;
  }
}

/** The height of the lines from `from` to `to` (exclusive, from 0) of a side. */
export type Height = (from: number, to: number) => number;

/** The space before a line, in the units of the heights. */
export interface Space {
  side: 'a' | 'b';
  /** The line, from 0. */
  line: number;
  height: number;
}

/** Returns the spaces that make adjacent hunks equally high on both sides. */
export function blankSpaces(hunks: readonly Hunk[], a: Height, b: Height): Space[] {
  return hunks.flatMap((hunk, i): Space[] => {
    const next = hunks[i + 1];
    const adjacent = next && next.fromA === hunk.toA && next.fromB === hunk.toB;
    const more = adjacent ? b(hunk.fromB, hunk.toB) - a(hunk.fromA, hunk.toA) : 0;
    if (Math.abs(more) < 1) {
      return [];
    }
    const side = more > 0 ? 'a' : 'b';
    return [{ side, line: side === 'a' ? hunk.toA : hunk.toB, height: Math.abs(more) }];
  });
}

const setSpaces = StateEffect.define<DecorationSet>();
const spaces = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (value, transaction) =>
    transaction.effects.reduce((last, effect) => (effect.is(setSpaces) ? effect.value : last), value),
  provide: (own) => EditorView.decorations.from(own),
});

/** The extension of both sides. `changed` is called when the heights of lines may have changed. */
export function alignment(changed: () => void): Extension {
  return [spaces, EditorView.updateListener.of((update) => void (update.geometryChanged && changed()))];
}

/** Measures the lines of both sides, and sets the spaces between them. */
export function align(a: EditorView, b: EditorView, hunks: readonly Hunk[]): void {
  const found = blankSpaces(hunks, heightOf(a), heightOf(b));
  for (const [side, view] of [
    ['a', a],
    ['b', b],
  ] as const) {
    const { doc } = view.state;
    const ranges: Range<Decoration>[] = found
      .filter((space) => space.side === side && space.line < doc.lines)
      .map(({ line, height }) =>
        Decoration.widget({ widget: new BlankSpace(height), side: -2, block: true }).range(
          doc.line(line + 1).from,
        ),
      );
    const wanted = Decoration.set(ranges, true);
    if (written(wanted) !== written(view.state.field(spaces))) {
      view.dispatch({ effects: setSpaces.of(wanted) });
    }
  }
}

function written(set: DecorationSet): string {
  const found: string[] = [];
  for (const cursor = set.iter(); cursor.value; cursor.next()) {
    const widget = cursor.value.spec.widget as BlankSpace;
    found.push(`${cursor.from} ${Math.round(widget.estimatedHeight)}`);
  }
  return found.join();
}

/** The heights of lines without the spaces between them. */
function heightOf(view: EditorView): Height {
  return (from, to) => {
    let sum = 0;
    for (let line = from; line < to; line++) {
      const block = view.lineBlockAt(view.state.doc.line(line + 1).from);
      const texts = Array.isArray(block.type)
        ? block.type.filter(({ type }) => type === BlockType.Text)
        : [block];
      sum += texts.reduce((height, text) => height + text.height, 0);
    }
    return sum;
  };
}
