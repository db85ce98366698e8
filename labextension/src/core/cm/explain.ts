/** Explains machine instructions, and words of the IR (`ir_docs`), in a listing: by a tooltip at the pointer, and by a callback for the line of the cursor. */

import type { Extension } from '@codemirror/state';
import { EditorView, hoverTooltip } from '@codemirror/view';

import { h } from '../dom';
import { explain } from '../explain';
import { irDocs } from './ir_docs';
import type { Language } from './languages';

/** Creates the extension. `onExplain` receives the explanation for the line of the cursor, or ''. */
export function explanations(get: () => Language, onExplain: (text: string) => void): Extension {
  return [
    irDocs(() => get() === 'ir'),
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
        onExplain(found ? `${found.opcode}: ${found.text}` : '');
      }
    }),
  ];
}
