/**
 * The Memory view: the pools of CuPy or the arrays of NumPy before and after the cell, what launches allocated, copies between the host
 * and the GPU, and the arrays that names hold. A copy is linked to its line of the cell.
 */

import { h, renderBackquotes } from '../dom';
import { size } from '../plot/numbers';
import { table, tableRow, type TableRow } from '../plot/table';
import type { Memory, MemoryArray, MemoryCopy, MemoryLaunch, MemoryPool } from '../schema';
import type { Store } from '../store';
import { paintedView } from '../painted_view';
import type { ViewSpec } from './spec';

export const memory: ViewSpec = {
  key: 'memory',
  title: 'Memory',
  tooltip: 'What the cell allocated, copied and left in memory',
  empty: (doc) =>
    doc.memory
      ? null
      : 'There are no figures of memory. They describe a %%blockkernel cell, and this is the output of another cell.',
  mount(panel, store) {
    const lineOf = new Map<HTMLElement, number>(); // of the rows of copies
    const view = paintedView(memory, panel, store, (doc) => {
      lineOf.clear();
      return doc.memory ? content(doc.memory, (copy) => copyRow(copy, store, lineOf)) : null;
    });
    return {
      update(change) {
        view.update(change);
        if (change === 'document' || change === 'selection') {
          const { lines = [], from } = store.selection ?? {};
          lineOf.forEach((line, row) =>
            row.classList.toggle('bnb-memory-lit', from !== 'memory' && lines.includes(line)),
          );
        }
      },
    };
  },
};

function content(found: Memory, row: (copy: MemoryCopy) => HTMLElement): Node[] {
  const parts = [
    scrolled(
      'Before and after the cell',
      ['', 'before', 'after', 'change', 'peak'],
      found.pools.map(poolRow),
    ),
    found.launches.length ? launchTable(found.launches) : null,
    copyTable(found, row),
    found.arrays.length ? scrolled(caption(found), ARRAY_HEADS, arrayRows(found)) : null,
    found.more_arrays ? h('p.bnb-quiet', {}, `and ${found.more_arrays} more`) : null,
    found.unnamed
      ? h('p', {}, `${size(found.unnamed)} that the cell allocated exist, although no name holds them.`)
      : null,
    ...found.notes.map((note) => h('p.bnb-quiet', {}, ...renderBackquotes(note))),
  ];
  return parts.filter((part) => part !== null);
}

function copyTable({ copies, pools }: Memory, row: (copy: MemoryCopy) => HTMLElement): HTMLElement | null {
  if (!copies.length) {
    const gpu = pools.some((pool) => pool.name.startsWith('CuPy'));
    return gpu ? h('p.bnb-quiet', {}, 'No copies between the host and the GPU were seen.') : null;
  }
  const heads = ['direction', 'bytes', 'times', 'where', 'code'];
  return scrolled('Copies between the host and the GPU', heads, copies.map(row));
}

/** Creates the row of a copy. One with a line of the cell selects it, and is added to `lineOf`. */
function copyRow(copy: MemoryCopy, store: Store, lineOf: Map<HTMLElement, number>): HTMLElement {
  const place = copy.place + (copy.by ? ` (by ${copy.by})` : '');
  const row = tableRow(copy.direction, size(copy.bytes), String(copy.times), place, h('code', {}, copy.code));
  if (copy.line) {
    const selection = { lines: [copy.line], op: null, from: 'memory' };
    row.tabIndex = 0;
    row.addEventListener('mouseenter', () => store.hover(selection));
    row.addEventListener('mouseleave', () => store.hover(null));
    row.addEventListener('click', () => store.pin(selection));
    row.addEventListener('keydown', (event) => event.key === 'Enter' && store.pin(selection));
    lineOf.set(row, copy.line);
  }
  return row;
}

const ARRAY_HEADS = ['names', 'bytes', '', 'array', 'where', 'since'];

function caption({ kept }: Memory): string {
  return kept
    ? `Arrays by name: ${size(kept)} of this cell outlive it`
    : 'Arrays by name: none of this cell outlives it';
}

/** Creates a table that a narrow card scrolls. The keyboard has to reach what scrolls. */
function scrolled(title: string, heads: readonly string[], rows: readonly TableRow[]): HTMLElement {
  return h('div.bnb-memory', { tabindex: 0, role: 'group', 'aria-label': title }, table(title, heads, rows));
}

function poolRow({ name, before, after, peak }: MemoryPool): HTMLElement {
  const change = after - before;
  const said = change ? `${change < 0 ? '−' : '+'}${size(Math.abs(change))}` : 'none';
  const row = tableRow(name, size(before), size(after), said, peak === null ? '–' : size(peak));
  row.title = `${before} → ${after} bytes${peak === null ? '' : `, peak ${peak}`}`;
  return row;
}

/** A CPU has no pool, so bytes and blocks are unknown there. */
function launchTable(launches: MemoryLaunch[]): HTMLElement {
  const pooled = launches.some((row) => row.bytes !== null);
  const heads = ['', 'launches', ...(pooled ? ['bytes', 'blocks'] : []), 'at most at a time'];
  const rows = launches.map(({ kernel, launches: count, bytes, blocks, peak }) => {
    const taken = pooled ? [bytes === null ? '–' : size(bytes), String(blocks ?? '–')] : [];
    return [h('code', {}, kernel), String(count), ...taken, size(peak)];
  });
  return scrolled('Allocated by launches', heads, rows);
}

function arrayRows({ arrays }: Memory): TableRow[] {
  const most = Math.max(...arrays.map((array) => array.bytes), 1);
  return arrays.map((array) => arrayRow(array, most));
}

function arrayRow(array: MemoryArray, most: number): TableRow {
  const share = h('meter.bnb-meter', { min: 0, max: most, value: array.bytes, 'aria-hidden': 'true' });
  const names = h('code', {}, array.names.join(', '));
  const since = array.new ? 'this cell' : 'before';
  return [names, size(array.bytes), share, array.what, array.place, since];
}
