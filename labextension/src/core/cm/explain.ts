/** Explanations of machine instructions in a listing: a tooltip under the pointer, and for the line of the cursor a callback. */

import type { Extension } from '@codemirror/state';
import { EditorView, hoverTooltip } from '@codemirror/view';

import { h } from '../dom';
import { explain } from '../explain';
import type { Language } from './languages';

/** `told` gets the words for the line that the cursor is on, '' for none. */
export function explanations(get: () => Language, told: (text: string) => void): Extension {
  return [
    hoverTooltip(
      (view, position) => {
        const line = view.state.doc.lineAt(position);
        const found = explain(get(), line.text);
        const from = line.from + (found?.from ?? 0);
        if (!found || position < from || position > from + found.opcode.length) {
          return null;
        }
        return {
          pos: from,
          end: from + found.opcode.length,
          above: true,
          create: () => ({
            dom: h('div.bnb-tooltip', {}, h('code', {}, found.opcode), ` ${found.text}`),
          }),
        };
      },
      { hoverTime: 200 },
    ),
    EditorView.updateListener.of((update) => {
      if (update.selectionSet || update.docChanged) {
        const found = explain(get(), update.state.doc.lineAt(update.state.selection.main.head).text);
        told(found ? `${found.opcode}: ${found.text}` : '');
      }
    }),
  ];
}
