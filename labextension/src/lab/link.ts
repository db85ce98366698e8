/**
 * Links input cells and cards. An editor extension highlights lines of a cell and reports the line under the pointer or cursor.
 *
 * A card is linked to the cell that contains its kernel's source at the same lines. After an edit of that source there is no such
 * cell, and the card has no link.
 */

import type { Cell } from '@jupyterlab/cells';
import {
  CodeMirrorEditor,
  EditorExtensionRegistry,
  type IEditorExtensionRegistry,
} from '@jupyterlab/codemirror';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { type Extension, type Range, StateEffect, StateField } from '@codemirror/state';
import { Decoration, type DecorationSet, EditorView } from '@codemirror/view';

import type { Source } from '../core/schema';

/** A text and the number of its first line in its cell. */
type SourceText = Pick<Source, 'first_line' | 'text'>;
type Listener = (line: number | null) => void;

const setHighlight = StateEffect.define<readonly number[]>();
const mark = Decoration.line({ class: 'bnb-source-highlight' });
const listeners = new WeakMap<EditorView, Set<Listener>>();

const highlightField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(value, transaction) {
    let next = transaction.docChanged ? Decoration.none : value;
    for (const effect of transaction.effects) {
      if (effect.is(setHighlight)) {
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

function notify(editor: EditorView, line: number | null): void {
  listeners.get(editor)?.forEach((listener) => listener(line));
}

/** The extension of all editors. It does nothing until a card registers a listener. */
export const linkExtension: Extension = [
  highlightField,
  EditorView.domEventHandlers({
    mousemove(event, editor) {
      if (listeners.has(editor)) {
        const position = editor.posAtCoords({ x: event.clientX, y: event.clientY });
        notify(editor, position === null ? null : editor.state.doc.lineAt(position).number);
      }
    },
    mouseleave: (_, editor) => notify(editor, null),
  }),
  EditorView.updateListener.of((update) => {
    if (update.selectionSet && update.view.hasFocus) {
      notify(update.view, update.state.doc.lineAt(update.state.selection.main.head).number);
    }
  }),
];

/** Returns the cell that contains a kernel's source at its original lines. Prefers the card's own cell. */
export function cellOf(panel: NotebookPanel, source: SourceText, near: HTMLElement): Cell | null {
  const cells = panel.content.widgets;
  const own = cells.find((cell) => cell.node.contains(near));
  return [...(own ? [own] : []), ...cells].find((cell) => containsSource(cell, source)) ?? null;
}

function containsSource(cell: Cell, source: SourceText): boolean {
  const wanted = source.text.replace(/\n$/, '').split('\n');
  const lines = cell.model.sharedModel.getSource().split('\n');
  return wanted.every((line, i) => lines[source.first_line - 1 + i] === line);
}

/** Calls `use` with the editor of a cell: now, or when the notebook makes it. A windowed notebook makes it when the cell first comes near. */
function withEditor(cell: Cell, use: (editor: EditorView) => void): void {
  const editor = editorOf(cell);
  if (editor) {
    use(editor);
    return;
  }
  void cell.ready.then(() => {
    const made = cell.isDisposed ? null : editorOf(cell);
    if (made) {
      use(made);
    }
  });
}

/** The lines that a cell without an editor is to highlight. */
const waiting = new WeakMap<Cell, readonly number[]>();

/** Highlights lines of a cell, at once or when it has an editor. */
export function highlightCell(cell: Cell, lines: readonly number[]): void {
  waiting.set(cell, lines);
  withEditor(cell, (editor) => {
    if (waiting.get(cell) === lines) {
      waiting.delete(cell);
      editor.dispatch({ effects: setHighlight.of(lines) });
    }
  });
}

/** Reports the line of a cell under the pointer or cursor, once it has an editor. Returns a function that stops the reports. */
export function watchCell(cell: Cell, listener: Listener): () => void {
  let stop: (() => void) | null = () => {};
  withEditor(cell, (editor) => {
    if (stop) {
      stop = watchEditor(editor, listener);
    }
  });
  return () => {
    stop?.();
    stop = null;
  };
}

function watchEditor(editor: EditorView, listener: Listener): () => void {
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

/** Adds the extension to the editors of the application. */
export function addLink(registry: IEditorExtensionRegistry): void {
  registry.addExtension({
    name: 'blocknb:link',
    factory: () => EditorExtensionRegistry.createImmutableExtension(linkExtension),
  });
}
