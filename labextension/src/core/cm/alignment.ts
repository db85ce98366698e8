/**
 * Blank space that keeps the two lines of an op next to each other inside a run of changes. The merge view aligns the ends of such a run
 * only, and draws adjacent hunks as one.
 */

import { EditorState, type Extension, type Range } from '@codemirror/state';
import { Decoration, EditorView, WidgetType } from '@codemirror/view';

import { h } from '../dom';
import type { Hunk } from '../hunks';

class BlankLines extends WidgetType {
  constructor(private readonly lines: number) {
    super();
  }

  toDOM(): HTMLElement {
    const element = h('div.bnb-blank-lines', { 'aria-hidden': 'true' });
    element.style.height = `${this.lines * 1.45}em`; // the line height of `theme.ts`
    return element;
  }

  eq(other: BlankLines): boolean {
    return other.lines === this.lines;
  }
}

/** Returns the blank lines before lines of one side, as pairs (line, from 0; number). */
export function blankLines(hunks: readonly Hunk[], side: 'a' | 'b'): [number, number][] {
  return hunks.flatMap((hunk, i): [number, number][] => {
    const next = hunks[i + 1];
    const adjacent = next && next.fromA === hunk.toA && next.fromB === hunk.toB;
    const longer = hunk.toB - hunk.fromB - (hunk.toA - hunk.fromA); // lines that the right side has more
    const missing = side === 'a' ? longer : -longer;
    return adjacent && missing > 0 ? [[side === 'a' ? hunk.toA : hunk.toB, missing]] : [];
  });
}

/** The blank lines of one side of a diff. */
export function alignment(hunks: readonly Hunk[], side: 'a' | 'b', text: string): Extension {
  const doc = EditorState.create({ doc: text }).doc;
  const ranges: Range<Decoration>[] = blankLines(hunks, side)
    .filter(([line]) => line < doc.lines)
    .map(([line, lines]) =>
      Decoration.widget({ widget: new BlankLines(lines), side: -2, block: true }).range(
        doc.line(line + 1).from,
      ),
    );
  return EditorView.decorations.of(Decoration.set(ranges, true));
}
