/** The setting for long lines: broken at the width of the listing, or scrolled sideways. */

import { Compartment, type Extension } from '@codemirror/state';
import { EditorView, ViewPlugin } from '@codemirror/view';

import type { Store } from '../store';

/** Creates an extension that breaks lines as long as the store says so. */
export function wrapping(store: Store): Extension {
  const wrapped = new Compartment();
  const lines = (): Extension => (store.display.wrap ? EditorView.lineWrapping : []);
  const follow = ViewPlugin.define((editor) => {
    const stop = store.subscribe((change) => {
      if (change === 'display') {
        editor.dispatch({ effects: wrapped.reconfigure(lines()) });
      }
    });
    return { destroy: stop };
  });
  return [wrapped.of(lines()), follow];
}
