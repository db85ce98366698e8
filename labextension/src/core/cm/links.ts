/**
 * Linked lines of a listing: what the pointer or the cursor is on goes to the store, and what the store says is lit gets lit here.
 *
 * A line belongs to a selection when it has the selected op, or came from one of its source lines.
 */

import { StateEffect, StateField, type Extension, type Range } from '@codemirror/state';
import { Decoration, type DecorationSet, EditorView } from '@codemirror/view';

import type { Listing } from '../schema';
import type { Selection, Store } from '../store';

const light = StateEffect.define<DecorationSet>();

const lit = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(value, transaction) {
    for (const effect of transaction.effects) {
      if (effect.is(light)) {
        return effect.value;
      }
    }
    return value.map(transaction.changes);
  },
  provide: (field) => EditorView.decorations.from(field),
});

const byLine = Decoration.line({ class: 'bnb-lit' });
const byOp = Decoration.line({ class: 'bnb-lit-op' });

/** What a line of a listing stands for; null when it came from nowhere in the source. */
export function selectionOf(listing: Listing, index: number, from: string): Selection | null {
  const line = listing.lines[index] ?? 0;
  const op = listing.ops?.[index] ?? -1;
  return line > 0 || op >= 0 ? { lines: line > 0 ? [line] : [], op: op >= 0 ? op : null, from } : null;
}

/** The indices of the lines that belong to a selection, by op and by source line. */
export function linesOf(listing: Listing, selection: Selection | null): { ops: number[]; lines: number[] } {
  const found = { ops: [] as number[], lines: [] as number[] };
  if (selection) {
    listing.lines.forEach((line, i) => {
      if (selection.op !== null && listing.ops?.[i] === selection.op) {
        found.ops.push(i);
      } else if (line > 0 && selection.lines.includes(line)) {
        found.lines.push(i);
      }
    });
  }
  return found;
}

/** Lights up what belongs to the selection; scrolls to its first line unless it was chosen here. */
export function show(editor: EditorView, listing: Listing, selection: Selection | null, key: string): void {
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
  editor.dispatch({ effects: light.of(Decoration.set(ranges, true)) });
  const first = found.ops[0] ?? found.lines[0];
  if (selection && selection.from !== key && first !== undefined && first < doc.lines) {
    bringIntoSight(editor, doc.line(first + 1).from);
  }
}

const MARGIN = 30; // px around a line that is brought into sight

/**
 * Scrolls the listing, and it alone: the editor's own way scrolls the notebook too, which would draw the cell that is pointed at away
 * from under the pointer.
 */
function bringIntoSight(editor: EditorView, position: number): void {
  const scroller = editor.dom.closest('.cm-mergeView') ?? editor.scrollDOM;
  const block = editor.lineBlockAt(position);
  const top = editor.documentTop + block.top - scroller.getBoundingClientRect().top + scroller.scrollTop;
  const last = top + block.height + MARGIN - scroller.clientHeight;
  scroller.scrollTop = Math.max(last, Math.min(scroller.scrollTop, top - MARGIN));
}

/** The extension of one listing; `get` gives what it shows, since an editor outlives its text. */
export function links(store: Store, key: string, get: () => Listing | null): Extension {
  function at(editor: EditorView, position: number | null): Selection | null {
    const listing = get();
    return position === null || !listing
      ? null
      : selectionOf(listing, editor.state.doc.lineAt(position).number - 1, key);
  }
  return [
    lit,
    EditorView.domEventHandlers({
      mousemove(event, editor) {
        const selection = at(editor, editor.posAtCoords({ x: event.clientX, y: event.clientY }));
        if (selection?.op !== store.hovered?.op || selection?.lines[0] !== store.hovered?.lines[0]) {
          store.hover(selection);
        }
      },
      mouseleave() {
        store.hover(null);
      },
      // Not click, which does not come when the token under the pointer is drawn anew between its two halves.
      mouseup(event, editor) {
        store.pin(at(editor, editor.posAtCoords({ x: event.clientX, y: event.clientY })));
      },
    }),
    // The keyboard's way: the line that the cursor stands on.
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
