/**
 * The Memory view: the pools of CuPy or the arrays of NumPy before and after the cell, what launches allocated, copies between the host
 * and the GPU, and the arrays that names hold. A copy is linked to its line of the cell.
 */

import { h, renderBackquotes } from '../dom';
import { size } from '../plot/numbers';
import type { Memory, MemoryArray, MemoryCopy, MemoryLaunch, MemoryPool } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

const NONE =
  'There are no figures of memory. They describe a %%blockkernel cell, and this is the output of another cell.';

export const memory: ViewSpec = {
  key: 'memory',
  title: 'Memory',
  tooltip: 'What the cell allocated, copied and left in memory',
  empty: (doc) => (doc.memory ? null : NONE),
  mount: (panel, store) => new MemoryView(panel, store),
};

class MemoryView implements Mounted {
  private readonly copies: [HTMLElement, number][] = [];

  constructor(
    private readonly panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.paint();
  }

  update(change: string): void {
    if (change === 'document') {
      this.paint();
    }
    if (change === 'document' || change === 'selection') {
      const lines = this.store.selection?.from === 'memory' ? [] : (this.store.selection?.lines ?? []);
      this.copies.forEach(([row, line]) => row.classList.toggle('bnb-memory-lit', lines.includes(line)));
    }
  }

  private paint(): void {
    const found = this.store.doc.memory;
    this.copies.length = 0;
    if (!found) {
      this.panel.replaceChildren(h('p.bnb-empty', {}, NONE));
      return;
    }
    const parts = [
      table('Before and after the cell', ['', 'before', 'after', 'change', 'peak'], found.pools.map(poolRow)),
      found.launches.length ? launchTable(found.launches) : null,
      this.copyTable(found),
      found.arrays.length ? table(caption(found), ARRAY_HEADS, arrayRows(found)) : null,
      found.more_arrays ? h('p.bnb-quiet', {}, `and ${found.more_arrays} more`) : null,
      found.unnamed
        ? h('p', {}, `${size(found.unnamed)} that the cell allocated exist, although no name holds them.`)
        : null,
      ...found.notes.map((note) => h('p.bnb-quiet', {}, ...renderBackquotes(note))),
    ];
    this.panel.replaceChildren(...parts.filter((part) => part !== null));
  }

  private copyTable({ copies, pools }: Memory): HTMLElement | null {
    if (!copies.length) {
      const gpu = pools.some((pool) => pool.name.startsWith('CuPy'));
      return gpu ? h('p.bnb-quiet', {}, 'No copies between the host and the GPU were seen.') : null;
    }
    const heads = ['direction', 'bytes', 'times', 'where', 'code'];
    return table(
      'Copies between the host and the GPU',
      heads,
      copies.map((copy) => this.copyRow(copy)),
    );
  }

  private copyRow(copy: MemoryCopy): HTMLElement {
    const by = copy.by ? ` (by ${copy.by})` : '';
    const row = line(copy.direction, [
      size(copy.bytes),
      String(copy.times),
      copy.place + by,
      h('code', {}, copy.code),
    ]);
    const at = copy.line;
    if (at) {
      const selection = { lines: [at], op: null, from: 'memory' };
      row.tabIndex = 0;
      row.addEventListener('mouseenter', () => this.store.hover(selection));
      row.addEventListener('mouseleave', () => this.store.hover(null));
      row.addEventListener('click', () => this.store.pin(selection));
      row.addEventListener('keydown', (event) => event.key === 'Enter' && this.store.pin(selection));
      this.copies.push([row, at]);
    }
    return row;
  }
}

const ARRAY_HEADS = ['names', 'bytes', '', 'array', 'where', 'since'];

function caption({ kept }: Memory): string {
  return kept
    ? `Arrays by name: ${size(kept)} of this cell outlive it`
    : 'Arrays by name: none of this cell outlives it';
}

function table(title: string, heads: string[], rows: HTMLElement[]): HTMLElement {
  const head = h('tr', {}, ...heads.map((text) => (text ? h('th', { scope: 'col' }, text) : h('td'))));
  const body = h(
    'table.bnb-table',
    {},
    h('caption', {}, title),
    h('thead', {}, head),
    h('tbody', {}, ...rows),
  );
  // A narrow card scrolls the table, and the keyboard has to reach what scrolls.
  return h('div.bnb-memory', { tabindex: 0, role: 'group', 'aria-label': title }, body);
}

function line(name: string | HTMLElement, cells: (string | Node)[]): HTMLElement {
  return h('tr', {}, h('th', { scope: 'row' }, name), ...cells.map((cell) => h('td', {}, cell)));
}

function poolRow({ name, before, after, peak }: MemoryPool): HTMLElement {
  const change = after - before;
  const said = change ? `${change < 0 ? '−' : '+'}${size(Math.abs(change))}` : 'none';
  const cells = [size(before), size(after), said, peak === null ? '–' : size(peak)];
  const row = line(name, cells);
  row.title = `${before} → ${after} bytes${peak === null ? '' : `, peak ${peak}`}`;
  return row;
}

/** A CPU has no pool, so bytes and blocks are unknown there. */
function launchTable(launches: MemoryLaunch[]): HTMLElement {
  const pooled = launches.some((row) => row.bytes !== null);
  const heads = ['', 'launches', ...(pooled ? ['bytes', 'blocks'] : []), 'at most at a time'];
  const rows = launches.map(({ kernel, launches: count, bytes, blocks, peak }) => {
    const taken = pooled ? [bytes === null ? '–' : size(bytes), String(blocks ?? '–')] : [];
    return line(h('code', {}, kernel), [String(count), ...taken, size(peak)]);
  });
  return table('Allocated by launches', heads, rows);
}

function arrayRows({ arrays }: Memory): HTMLElement[] {
  const most = Math.max(...arrays.map((array) => array.bytes), 1);
  return arrays.map((array) => arrayRow(array, most));
}

function arrayRow(array: MemoryArray, most: number): HTMLElement {
  const share = h('meter.bnb-meter', { min: 0, max: most, value: array.bytes, 'aria-hidden': 'true' });
  const names = h('code', {}, array.names.join(', '));
  const since = array.new ? 'this cell' : 'before';
  return line(names, [size(array.bytes), share, array.what, array.place, since]);
}
