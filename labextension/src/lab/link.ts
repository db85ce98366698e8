/**
 * The input cell, linked: an extension of every editor that can light up lines and tells which line the pointer or the cursor is on.
 *
 * Lines are those of the cell. A card asks for the cell that holds its kernel's text exactly where the kernel was compiled from; when
 * the text has been edited since, there is none, and the links rest.
 */

import type { Cell } from '@jupyterlab/cells';
import { CodeMirrorEditor } from '@jupyterlab/codemirror';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { type Extension, type Range, StateEffect, StateField } from '@codemirror/state';
import { Decoration, type DecorationSet, EditorView } from '@codemirror/view';

import type { Source } from '../core/schema';

type Listener = (line: number | null) => void;

const light = StateEffect.define<readonly number[]>();
const mark = Decoration.line({ class: 'bnb-source-lit' });
const listeners = new WeakMap<EditorView, Set<Listener>>();

const lit = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(value, transaction) {
    let next = transaction.docChanged ? Decoration.none : value;
    for (const effect of transaction.effects) {
      if (effect.is(light)) {
        const doc = transaction.newDoc;
        const ranges: Range<Decoration>[] = effect.value
          .filter((line) => line >= 1 && line <= doc.lines)
          .map((line) => mark.range(doc.line(line).from));
        next = Decoration.set(ranges, true);
      }
    }
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

function tell(editor: EditorView, line: number | null): void {
  listeners.get(editor)?.forEach((listener) => listener(line));
}

/** What every editor gets. It does nothing until a card listens. */
export const linkExtension: Extension = [
  lit,
  EditorView.domEventHandlers({
    mousemove(event, editor) {
      if (listeners.has(editor)) {
        const position = editor.posAtCoords({ x: event.clientX, y: event.clientY });
        tell(editor, position === null ? null : editor.state.doc.lineAt(position).number);
      }
    },
    mouseleave: (_, editor) => tell(editor, null),
  }),
  EditorView.updateListener.of((update) => {
    if (update.selectionSet && update.view.hasFocus) {
      tell(update.view, update.state.doc.lineAt(update.state.selection.main.head).number);
    }
  }),
];

/** The cell that holds a kernel's text where it was compiled from: the card's own if it can be, else any other of the notebook. */
export function cellOf(panel: NotebookPanel, source: Source, near: HTMLElement): Cell | null {
  const cells = panel.content.widgets;
  const own = cells.find((cell) => cell.node.contains(near));
  return [...(own ? [own] : []), ...cells].find((cell) => holds(cell, source)) ?? null;
}

function holds(cell: Cell, source: Source): boolean {
  const wanted = source.text.replace(/\n$/, '').split('\n');
  const lines = cell.model.sharedModel.getSource().split('\n');
  return wanted.every((line, i) => lines[source.first_line - 1 + i] === line);
}

/** Lights up lines of a cell; an editor that is not there (scrolled away) has nothing to light. */
export function lightCell(cell: Cell, lines: readonly number[]): void {
  editorOf(cell)?.dispatch({ effects: light.of(lines) });
}

/** Tells a listener which line of a cell the pointer or the cursor is on; returns how to stop. */
export function watchCell(cell: Cell, listener: Listener): () => void {
  const editor = editorOf(cell);
  if (!editor) {
    return () => {};
  }
  const all = listeners.get(editor) ?? new Set();
  listeners.set(editor, all.add(listener));
  return () => {
    all.delete(listener);
    if (!all.size) {
      listeners.delete(editor);
    }
  };
}

function editorOf(cell: Cell): EditorView | null {
  return cell.editor instanceof CodeMirrorEditor ? cell.editor.editor : null;
}
