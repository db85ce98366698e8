/** A list of compiler notes. A sign and a word show the kind of each note, which is linked to its line and op. */

import { h } from '../dom';
import type { Note, NoteKind } from '../schema';
import type { Store } from '../store';

const SIGNS: Record<NoteKind, [string, string]> = {
  info: ['•', ''],
  missed: ['○', 'missed: '],
  warning: ['▲', 'warning: '],
};

/** Creates the list. `none` is the text for an empty list. */
export function notesList(notes: readonly Note[], store: Store, none = ''): HTMLElement {
  if (!notes.length) {
    return h('p.bnb-quiet', {}, none);
  }
  const list = h('ul.bnb-notes');
  for (const note of notes) {
    const [sign, word] = SIGNS[note.kind];
    const item = h('li', { 'data-kind': note.kind });
    item.append(h('span.bnb-sign', { 'aria-hidden': 'true' }, sign), ` ${word}${note.text}`);
    if (note.line || note.op >= 0) {
      const selection = {
        lines: note.line ? [note.line] : [],
        op: note.op >= 0 ? note.op : null,
        from: 'notes',
      };
      const title = 'Select what this note is about in all listings';
      const place = note.line ? `line ${note.line}` : `op ${note.op}`;
      item.append(' ', h('button.bnb-link', { type: 'button', title }, place));
      item.dataset.linked = 'true';
      item.addEventListener('mouseenter', () => store.hover(selection));
      item.addEventListener('mouseleave', () => store.hover(null));
      item.addEventListener('click', () => store.pin(selection)); // of the button, too
    }
    list.append(item);
  }
  return list;
}
