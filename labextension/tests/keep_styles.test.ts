/** CodeMirror's `<style>` element keeps its rules when the same text is assigned, and takes another text. */

import { EditorView } from '@codemirror/view';
import { expect, test } from 'vitest';

import { keepStyles } from '../src/core/cm/keep_styles';

function editor(color: string): void {
  new EditorView({ parent: document.body, extensions: EditorView.theme({ '&': { color } }) });
}

test('the same styles leave the element alone, and other styles change it', () => {
  editor('rgb(1, 2, 3)');
  keepStyles();
  const element = [...document.head.querySelectorAll('style')].find((one) =>
    one.textContent.includes('\u037c'),
  )!;
  const before = element.firstChild;
  element.textContent = `${element.textContent}`; // as CodeMirror in JupyterLab 4.6 does for each editor
  expect(element.firstChild).toBe(before);
  editor('rgb(4, 5, 6)');
  expect(element.textContent).toContain('rgb(1, 2, 3)');
  expect(element.textContent).toContain('rgb(4, 5, 6)');
});
