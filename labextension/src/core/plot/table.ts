/** Tables with a caption. The first cell of each row is its header. */

import { h } from '../dom';

/** A row, or its cells. */
export type TableRow = HTMLElement | readonly (string | Node)[];

/** Creates a table. A head without a text is an empty cell. */
export function table(caption: string, head: readonly string[], rows: readonly TableRow[]): HTMLElement {
  return h(
    'table.bnb-table',
    {},
    h('caption', {}, caption),
    h('thead', {}, h('tr', {}, ...head.map((text) => (text ? h('th', { scope: 'col' }, text) : h('td'))))),
    h(
      'tbody',
      {},
      ...rows.map((row) => (row instanceof HTMLElement ? row : tableRow(row[0], ...row.slice(1)))),
    ),
  );
}

/** Creates a row. */
export function tableRow(header: string | Node, ...cells: readonly (string | Node)[]): HTMLElement {
  return h('tr', {}, h('th', { scope: 'row' }, header), ...cells.map((cell) => h('td', {}, cell)));
}
