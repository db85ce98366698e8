/** A table of texts. */

import { h } from '../dom';

/** Creates a table. The first cell of each row is its header. */
export function table(
  caption: string,
  head: readonly string[],
  rows: readonly (readonly string[])[],
): HTMLElement {
  const element = h('table.bnb-table', {}, h('caption', {}, caption));
  element.append(
    h('thead', {}, h('tr', {}, ...head.map((text) => (text ? h('th', { scope: 'col' }, text) : h('td'))))),
  );
  const body = h('tbody');
  for (const [first, ...rest] of rows) {
    body.append(h('tr', {}, h('th', { scope: 'row' }, first), ...rest.map((text) => h('td', {}, text))));
  }
  element.append(body);
  return element;
}
