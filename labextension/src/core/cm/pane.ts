/** A listing in a read-only editor. The keyboard can focus it, `/` searches in it, and the store links its lines. */

import { standardKeymap } from '@codemirror/commands';
import {
  findNext,
  openSearchPanel,
  search,
  searchKeymap,
  SearchQuery,
  setSearchQuery,
} from '@codemirror/search';
import { Compartment, EditorState, type Extension } from '@codemirror/state';
import { EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view';

import type { Listing } from '../schema';
import type { Store } from '../store';
import { explanations } from './explain';
import { keepStyles } from './keep_styles';
import { language, type Language } from './languages';
import { lineColours } from './line_colours';
import { highlightSelection, links } from './links';
import { theme } from './theme';
import { wrapping } from './wrap';

/** The extension of all read-only listings, also in a diff. */
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
      ...standardKeymap, // moves the cursor, which a read-only editor would not do otherwise
    ]),
    theme,
  ];
}

/** Opens the search panel of a listing with a text, marks all matches, and selects the next one. */
export function findInListing(editor: EditorView, wanted: string): void {
  openSearchPanel(editor);
  editor.dispatch({ effects: setSearchQuery.of(new SearchQuery({ search: wanted, literal: true })) });
  findNext(editor);
}

/** A mounted listing. */
export interface Pane {
  readonly editor: EditorView;
  readonly listing: Listing | null;
  show(listing: Listing | null, name: Language): void;
  /** Highlights the lines of the store's selection. */
  highlight(): void;
  dispose(): void;
}

/**
 * Creates a listing. `firstLine` returns the number of the first line, because the source may start in the middle of a cell.
 * `onExplain` receives the explanation of the instruction on the cursor's line.
 */
export function pane(
  parent: HTMLElement,
  label: string,
  key: string,
  store: Store,
  firstLine: () => number = () => 1,
  onExplain: (text: string) => void = () => {},
): Pane {
  let current: Listing | null = null;
  let currentLanguage: Language = 'text';
  const highlighted = new Compartment();
  keepStyles();
  const editor = new EditorView({
    parent,
    state: EditorState.create({
      doc: '',
      extensions: [
        lineNumbers({ formatNumber: (n) => String(n - 1 + firstLine()) }),
        readOnly(label),
        highlighted.of([]),
        links(store, key, () => current),
        wrapping(store),
        lineColours(store, () => current),
        explanations(() => currentLanguage, onExplain),
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
      currentLanguage = name;
      editor.dispatch({
        changes: { from: 0, to: editor.state.doc.length, insert: listing?.text ?? '' },
        effects: highlighted.reconfigure(language(name)),
      });
      this.highlight();
    },
    highlight() {
      if (current) {
        highlightSelection(editor, current, store.selection, key);
      }
    },
    dispose: () => editor.destroy(),
  };
}
