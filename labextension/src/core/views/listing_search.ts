/** Searches a text in all listings of a target: the source, the IR after each pass, and machine code. It counts the lines, and a click opens one. */

import { button, h } from '../dom';
import type { Store } from '../store';

/** A listing to search: its key, its title, and its text (null: not stored). */
export interface Searched {
  key: string;
  title: string;
  text: () => Promise<string | null>;
}

/** Returns the number of lines that contain a text. Letters match in both cases. */
export function countLines(text: string, wanted: string): number {
  const found = wanted.toLowerCase();
  return text.split('\n').filter((line) => line.toLowerCase().includes(found)).length;
}

/** Creates the field. `open` shows a listing and the matches in it. */
export function listingSearch(
  store: Store,
  listings: () => readonly Searched[],
  open: (key: string, wanted: string) => void,
): HTMLElement {
  const field = h('input.bnb-filter', {
    type: 'search',
    placeholder: 'find in all listings',
    'aria-label': 'Text to find in all listings',
    title: 'Counts the lines with this text in the source, the IR after each pass, and machine code',
  });
  const found = h('ul.bnb-search-results', { 'aria-label': 'Lines with the text', hidden: true });
  const status = h('span.bnb-quiet', { role: 'status' });
  let token = 0;

  async function find(): Promise<void> {
    const now = ++token;
    const wanted = field.value.trim();
    const all = wanted ? [...listings()] : [];
    const texts = await Promise.all(all.map((one) => one.text()));
    if (now !== token) {
      return; // the text changed in the meantime
    }
    const counts = texts.map((text) => (text === null ? 0 : countLines(text, wanted)));
    const some = all.filter((_, i) => counts[i] > 0);
    const missing = texts.filter((text) => text === null).length;
    const sum = counts.reduce((a, b) => a + b, 0);
    const left = missing ? ` ${missing} listings are not stored.` : '';
    status.textContent = wanted
      ? `${sum} line${sum === 1 ? '' : 's'} in ${some.length} of ${all.length - missing} listings.${left}`
      : '';
    found.hidden = !some.length;
    found.replaceChildren(
      ...some.map((one) => {
        const label = `${one.title} ${counts[all.indexOf(one)]}`;
        return h(
          'li',
          {},
          button(label, () => open(one.key, wanted), { title: 'Show these lines' }),
        );
      }),
    );
  }

  field.addEventListener('input', () => store.run(find()));
  return h('div.bnb-search', {}, h('div.bnb-tools', {}, field, status), found);
}
