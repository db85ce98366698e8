/** A table of texts; the first cell of each row is its head. */

import { h } from '../dom';

export function table(
  caption: string,
  head: readonly string[],
  rows: readonly (readonly string[])[],
): HTMLElement {
  const made = h('table.bnb-table', {}, h('caption', {}, caption));
  made.append(h('thead', {}, h('tr', {}, ...head.map((text) => h('th', { scope: 'col' }, text)))));
  const body = h('tbody');
  for (const [first, ...rest] of rows) {
    body.append(h('tr', {}, h('th', { scope: 'row' }, first), ...rest.map((text) => h('td', {}, text))));
  }
  made.append(body);
  return made;
}
