/** A listing on the page: a read-only editor that the keyboard can enter, searched with `/`, its lines linked through the store. */

import { standardKeymap } from '@codemirror/commands';
import { search, searchKeymap, openSearchPanel } from '@codemirror/search';
import { Compartment, EditorState, type Extension } from '@codemirror/state';
import { EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view';

import type { Listing } from '../schema';
import type { Store } from '../store';
import { explanations } from './explain';
import { language, type Language } from './languages';
import { links, show } from './links';
import { theme } from './theme';

/** What every read-only listing has, alone or in a pair. */
export function readOnly(label: string): Extension {
  return [
    EditorState.readOnly.of(true),
    EditorView.editable.of(false),
    EditorView.contentAttributes.of({
      tabindex: '0',
      'aria-label': label,
      role: 'textbox',
      'aria-readonly': 'true',
      'aria-multiline': 'true',
    }),
    drawSelection(),
    highlightActiveLine(),
    search({ top: true }),
    keymap.of([
      { key: '/', run: openSearchPanel, preventDefault: true },
      ...searchKeymap,
      ...standardKeymap, // without it there is no cursor to move, as nothing can be edited
    ]),
    theme,
  ];
}

export interface Pane {
  readonly editor: EditorView;
  readonly listing: Listing | null;
  show(listing: Listing | null, name: Language): void;
  /** The store's selection has changed. */
  light(): void;
  dispose(): void;
}

/**
 * `firstLine`: the number of the first line in the gutter (the source starts somewhere in its cell). `told` gets what the instruction
 * on the cursor's line does.
 */
export function pane(
  parent: HTMLElement,
  label: string,
  key: string,
  store: Store,
  firstLine: () => number = () => 1,
  told: (text: string) => void = () => {},
): Pane {
  let current: Listing | null = null;
  let written: Language = 'text';
  const highlighted = new Compartment();
  const editor = new EditorView({
    parent,
    state: EditorState.create({
      doc: '',
      extensions: [
        lineNumbers({ formatNumber: (n) => String(n - 1 + firstLine()) }),
        readOnly(label),
        highlighted.of([]),
        links(store, key, () => current),
        explanations(() => written, told),
      ],
    }),
  });
  return {
    editor,
    get listing() {
      return current;
    },
    show(listing, name) {
      current = listing;
      written = name;
      editor.dispatch({
        changes: { from: 0, to: editor.state.doc.length, insert: listing?.text ?? '' },
        effects: highlighted.reconfigure(language(name)),
      });
      this.light();
    },
    light() {
      if (current) {
        show(editor, current, store.selection, key);
      }
    },
    dispose: () => editor.destroy(),
  };
}
