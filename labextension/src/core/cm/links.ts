/**
 * Links the lines of a listing with the store. The line under the pointer or cursor becomes the selection, and the listing highlights
 * the selection of the store.
 *
 * A line belongs to a selection if it shows the selected op, or if it was generated from a selected source line.
 */

import { StateEffect, StateField, type Extension, type Range } from '@codemirror/state';
import { Decoration, type DecorationSet, EditorView } from '@codemirror/view';

import type { Listing } from '../schema';
import type { Selection, Store } from '../store';

const setHighlight = StateEffect.define<DecorationSet>();

const highlightField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(value, transaction) {
    for (const effect of transaction.effects) {
      if (effect.is(setHighlight)) {
        return effect.value;
      }
    }
    return value.map(transaction.changes);
  },
  provide: (field) => EditorView.decorations.from(field),
});

const byLine = Decoration.line({ class: 'bnb-highlight' });
const byOp = Decoration.line({ class: 'bnb-highlight-op' });

/** Returns the selection for a line of a listing, or null if the line has neither an op nor a source line. */
export function selectionOf(listing: Listing, index: number, from: string): Selection | null {
  const line = listing.lines[index] ?? 0;
  const op = listing.ops?.[index] ?? -1;
  const inner = listing.inner?.[index] ?? 0;
  const found = { lines: line > 0 ? [line] : [], op: op >= 0 ? op : null, from };
  return line > 0 || op >= 0 ? { ...found, ...(inner > 0 && { inner: [inner] }) } : null;
}

/**
 * Returns the indices of the lines that belong to a selection, by op and by source line. If lines of helpers are selected, lines that
 * come from the same lines of helpers belong to it, not all lines of the call.
 */
export function linesOf(listing: Listing, selection: Selection | null): { ops: number[]; lines: number[] } {
  const found = { ops: [] as number[], lines: [] as number[] };
  if (selection) {
    const inner = listing.inner && selection.inner?.length ? selection.inner : null;
    listing.lines.forEach((line, i) => {
      const op = listing.ops?.[i] ?? -1;
      if (op >= 0 && (op === selection.op || selection.ops?.includes(op))) {
        found.ops.push(i);
      } else if (inner ? inner.includes(listing.inner![i]) : line > 0 && selection.lines.includes(line)) {
        found.lines.push(i);
      }
    });
  }
  return found;
}

/** Highlights the lines of a selection. Scrolls to the first one, unless the user selected it in this listing. */
export function highlightSelection(
  editor: EditorView,
  listing: Listing,
  selection: Selection | null,
  key: string,
): void {
  const found = linesOf(listing, selection);
  const ranges: Range<Decoration>[] = [];
  const doc = editor.state.doc;
  for (const [indices, mark] of [
    [found.lines, byLine],
    [found.ops, byOp],
  ] as const) {
    for (const i of indices) {
      if (i < doc.lines) {
        ranges.push(mark.range(doc.line(i + 1).from));
      }
    }
  }
  editor.dispatch({ effects: setHighlight.of(Decoration.set(ranges, true)) });
  const first = found.ops[0] ?? found.lines[0];
  if (selection && selection.from !== key && first !== undefined && first < doc.lines) {
    scrollToPosition(editor, doc.line(first + 1).from);
  }
}

const MARGIN = 30; // px: a line that is closer to an edge of the listing counts as out of sight

/**
 * Scrolls the listing so that a position is in its middle, unless it is in sight. The editor's own `scrollIntoView` would also scroll the
 * notebook, and so move the cell away from the pointer. The editor estimates the heights of lines that it has not drawn; after it drew
 * them, a second step corrects the first.
 */
function scrollToPosition(editor: EditorView, position: number, steps = 2): void {
  const scroller = editor.dom.closest('.cm-mergeView') ?? editor.scrollDOM;
  const block = editor.lineBlockAt(position);
  const { clientHeight, scrollTop } = scroller;
  const scale = editor.scaleY; // of projector mode, which the editor's heights include, and those of the scroller do not
  const offset = editor.documentTop + block.top - scroller.getBoundingClientRect().top;
  const top = offset / scale + scrollTop;
  const height = block.height / scale;
  if (top < scrollTop + MARGIN || top + height > scrollTop + clientHeight - MARGIN) {
    scroller.scrollTop = top - (clientHeight - height) / 2;
    if (steps > 1) {
      editor.requestMeasure({
        key: scrollToPosition,
        read: () => null,
        write: () => scrollToPosition(editor, position, steps - 1),
      });
    }
  }
}

/** Creates the extension of one listing. `get` returns the listing that the editor shows now. */
export function links(store: Store, key: string, get: () => Listing | null): Extension {
  function at(editor: EditorView, position: number | null): Selection | null {
    const listing = get();
    return position === null || !listing
      ? null
      : selectionOf(listing, editor.state.doc.lineAt(position).number - 1, key);
  }
  return [
    highlightField,
    EditorView.domEventHandlers({
      mousemove(event, editor) {
        const selection = at(editor, editor.posAtCoords({ x: event.clientX, y: event.clientY }));
        const same = (['op', 'lines', 'inner'] as const).every(
          (key) => String(selection?.[key]) === String(store.hovered?.[key]),
        );
        if (!same) {
          store.hover(selection);
        }
      },
      mouseleave() {
        store.hover(null);
      },
      // Not `click`: the browser omits it if the editor redraws the token between mousedown and mouseup.
      mouseup(event, editor) {
        store.pin(at(editor, editor.posAtCoords({ x: event.clientX, y: event.clientY })));
      },
    }),
    // The keyboard selects the line of the cursor.
    EditorView.updateListener.of((update) => {
      if (
        update.selectionSet &&
        update.view.hasFocus &&
        !update.transactions.some((t) => t.isUserEvent('select.pointer'))
      ) {
        store.pin(at(update.view, update.state.selection.main.head));
      }
    }),
  ];
}
