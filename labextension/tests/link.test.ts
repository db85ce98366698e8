/** Links of cells and cards, in a windowed notebook: a cell has no editor before it first comes near the visible part. */

import { EditorState } from '@codemirror/state';
import { EditorView } from '@codemirror/view';
import { afterAll, expect, test, vi } from 'vitest';

class FakeEditor {
  constructor(readonly editor: EditorView) {}
}
vi.doMock('@jupyterlab/codemirror', () => ({
  CodeMirrorEditor: FakeEditor,
  EditorExtensionRegistry: class {},
}));
const { highlightCell, linkExtension, watchCell } = await import('../src/lab/link');
afterAll(() => void vi.doUnmock('@jupyterlab/codemirror'));

/** A cell that the notebook has not rendered. `render` makes its editor, of three lines. */
function unrendered() {
  let ready = (): void => {};
  const cell = {
    editor: null as FakeEditor | null,
    isDisposed: false,
    ready: new Promise<void>((resolve) => (ready = resolve)),
  };
  const render = async (): Promise<EditorView> => {
    const state = EditorState.create({ doc: 'a\nb\nc', extensions: linkExtension });
    const view = new EditorView({ state, parent: document.body });
    cell.editor = new FakeEditor(view);
    ready();
    await cell.ready;
    await Promise.resolve();
    return view;
  };
  return { cell: cell as never, render };
}

function moveTo(view: EditorView, line: number): void {
  view.focus();
  view.dispatch({ selection: { anchor: view.state.doc.line(line).from } });
}

const highlighted = (view: EditorView): string[] =>
  [...view.dom.querySelectorAll('.bnb-source-highlight')].map((line) => line.textContent!);

test('a cell that is rendered later reports its lines, until the reports are stopped', async () => {
  const { cell, render } = unrendered();
  const lines: (number | null)[] = [];
  const stop = watchCell(cell, (line) => lines.push(line));
  const view = await render();
  moveTo(view, 3);
  expect(lines).toEqual([3]);
  stop();
  moveTo(view, 2);
  expect(lines).toEqual([3]);
});

test('reports that were stopped before the cell was rendered do not begin', async () => {
  const { cell, render } = unrendered();
  const listener = vi.fn();
  watchCell(cell, listener)();
  moveTo(await render(), 3);
  expect(listener).not.toHaveBeenCalled();
});

test('a cell that is rendered later has the highlight that was set last', async () => {
  const { cell, render } = unrendered();
  highlightCell(cell, [1, 2]);
  highlightCell(cell, [3]);
  expect(highlighted(await render())).toEqual(['c']);
  const other = unrendered();
  highlightCell(other.cell, [1]);
  highlightCell(other.cell, []);
  expect(highlighted(await other.render())).toEqual([]);
});
