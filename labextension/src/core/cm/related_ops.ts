/** What a diff of IR shows besides its lines: the table of layouts, folded, and the ops that come from a selected one. */

import { h } from '../dom';
import type { Difference } from '../hunks';
import type { Listing } from '../schema';
import type { Selection } from '../store';
import type { Side } from './diff';

const TABLE = /^(#\w+ = .*\n)+\n?/;

/** A listing without the table of layouts at its top, and the lines of the table. */
export function splitTable(listing: Listing): { listing: Listing; table: string[] } {
  const head = listing.ops ? (TABLE.exec(listing.text)?.[0] ?? '') : '';
  const count = head.split('\n').length - 1;
  return {
    table: head.split('\n').filter(Boolean),
    listing: head
      ? {
          text: listing.text.slice(head.length),
          lines: listing.lines.slice(count),
          ops: listing.ops?.slice(count),
          inner: listing.inner?.slice(count),
        }
      : listing,
  };
}

/** Two sides without their tables of layouts, which a click unfolds. Names of layouts differ between listings, so they are no change. */
export function foldLayouts(left: Side, right: Side) {
  const [one, two] = [left, right].map((side) => splitTable(side.listing));
  const tables = [one.table, two.table];
  const shift = (side: Side, listing: Listing): Side => ({ ...side, listing });
  const elements = tables.some((table) => table.length)
    ? [
        h(
          'details.bnb-layouts',
          {},
          h(
            'summary',
            { title: 'Show or hide the layouts' },
            `Layouts: ${one.table.length} on the left, ${two.table.length} on the right`,
          ),
          h('div.bnb-sides', {}, ...tables.map((table) => h('pre', {}, table.join('\n')))),
        ),
      ]
    : [];
  const b = shift(right, two.listing);
  const { matched } = right.hints ?? {};
  if (matched) {
    const [di, dj] = [left, right].map(
      (side, i) => side.listing.lines.length - [one, two][i].listing.lines.length,
    );
    const moved = (runs: typeof matched.same) =>
      runs.map(([i, j, n]) => [i - di, j - dj, n] as const).filter(([i, j]) => i >= 0 && j >= 0);
    b.hints = { ...right.hints, matched: { same: moved(matched.same), aligned: moved(matched.aligned) } };
  }
  return { a: shift(left, one.listing), b, left: one.table, right: two.table, elements };
}

/** Adds to a selected op the ops that it was made from, and those that were made from it. */
export function withRelated(
  selection: Selection | null,
  difference: Difference,
  origins: ReadonlyMap<number, readonly number[]> | undefined,
): Selection | null {
  if (!selection || selection.op === null || !origins) {
    return selection;
  }
  const selected = [selection.op, ...(selection.ops ?? [])];
  const roots = new Set(selected.flatMap((op) => [op, ...(origins.get(op) ?? [])]));
  const made = [...origins].flatMap(([op, from]) => (from.some((id) => roots.has(id)) ? [op] : []));
  return { ...selection, ops: [...roots, ...made] };
}
