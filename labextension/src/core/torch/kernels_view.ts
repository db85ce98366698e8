/** The Kernels view of a compiled model: a row for each generated kernel, and below it the kernel's card once the user opens it. */

import { breakable, button, h } from '../dom';
import type { Card } from '../mount';
import { digits, timing } from '../plot/numbers';
import type { ProgramLine, TorchRow } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from '../views/spec';
import { cardHost, selectionOf } from './selected';

export const torchKernels: ViewSpec = {
  key: 'kernels',
  title: 'Kernels',
  tooltip: 'The generated kernels in the order of their launches, with their times and cards',
  empty: (doc) => (doc.torch ? null : 'Only a model of torch.compile has generated kernels.'),
  mount: (panel, store) => new KernelsView(panel, store),
};

const MOST_LINES = 6;
const COLUMNS: readonly [string, string][] = [
  ['#', ''],
  ['kernel', ''],
  ['lines and operators', ''],
  ['time (µs)', 'The median time of one launch'],
  ['share (%)', 'The share of all launches of the row in the sum of the times'],
  ['unique bytes (kB)', 'The fewest bytes that the launch must move'],
  ['GB/s', 'Unique bytes over time'],
  ['MFLOP', 'The floating-point operations of the launch'],
  ['of the roof (%)', 'The share of the ceiling that bounds the launch first'],
];

class KernelsView implements Mounted {
  private readonly selection;
  private readonly rows: HTMLTableRowElement[] = [];
  private readonly toggles: HTMLButtonElement[] = [];
  private readonly cards = new Map<number, Card>();
  private readonly stop: () => void;
  readonly keys = [['Enter', 'open or close the card of the focused kernel']] as const;

  constructor(
    private readonly panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.selection = selectionOf(store);
    this.paint();
    this.stop = this.selection.subscribe(() => this.mark());
    this.mark();
  }

  update(change: string): void {
    if (change === 'document') {
      this.close();
      this.paint();
    } else if (change === 'host') {
      this.cards.forEach((card, row) => card.connect(cardHost(this.store.host, row)));
    }
  }

  dispose(): void {
    this.stop();
    this.close();
  }

  /** Opens the card of a row. */
  open(row: number): void {
    if (this.toggles[row]?.getAttribute('aria-expanded') === 'false') {
      this.flip(row);
    }
    this.rows[row]?.scrollIntoView?.({ block: 'nearest' });
  }

  private close(): void {
    this.cards.forEach((card) => card.dispose());
    this.cards.clear();
  }

  private paint(): void {
    const part = this.store.doc.torch!;
    const shown = COLUMNS.filter(([name]) => name !== 'of the roof (%)' || part.rows.some((row) => row.roof));
    const head = shown.map(([name, title]) => h('th', { scope: 'col', title: title || null }, name));
    const body = h('tbody');
    this.rows.length = this.toggles.length = 0;
    part.rows.forEach((row, i) => body.append(...this.row(row, i, shown.length)));
    const caption = 'A click on a kernel opens its card. Times are medians of launches on copies.';
    const table = h(
      'table.bnb-table.bnb-kernels',
      {},
      h('caption', {}, caption),
      h('thead', {}, h('tr', {}, ...head)),
      body,
    );
    const more = part.more_rows ? h('p.bnb-quiet', {}, `and ${part.more_rows} more kernels`) : null;
    const place = h(
      'div.bnb-results',
      { tabindex: 0, role: 'region', 'aria-label': 'Generated kernels' },
      table,
    );
    this.panel.replaceChildren(place, ...(more ? [more] : []));
  }

  private row(row: TorchRow, i: number, columns: number): HTMLElement[] {
    const place = h('td', { colspan: columns });
    const below = h('tr.bnb-kernel-card', { hidden: true }, place);
    const toggle = h('button.bnb-kernel-name', { type: 'button', 'aria-expanded': 'false' });
    toggle.append(...breakable(row.name));
    const graph = row.groups.length
      ? button('graph', () => this.showInGraph(i), {
          title: 'Show this kernel in the graph',
          'aria-label': `Show ${row.name} in the graph`,
        })
      : null;
    const facts = [
      row.configuration,
      row.grid && `grid ${row.grid}`,
      row.launches > 1 && `${row.launches} launches`,
    ];
    const about = h('small', {}, facts.filter(Boolean).join(', '), ' ', graph);
    const line = h(
      'tr.bnb-kernel',
      { 'data-row': i },
      h('td.bnb-figure', {}, String(i)),
      h('th', { scope: 'row' }, toggle, about),
      h('td.bnb-origins', {}, ...programLines(row.lines), h('small', {}, row.operators.join(', '))),
      ...this.figures(row),
    );
    toggle.addEventListener('click', (event) => {
      event.stopPropagation();
      this.flip(i);
    });
    line.addEventListener('click', (event) => {
      const target = event.target as HTMLElement;
      if (!target.closest('button') && !window.getSelection()?.toString()) {
        this.flip(i);
      }
    });
    this.rows.push(line);
    this.toggles.push(toggle);
    return [line, below];
  }

  private figures(row: TorchRow): HTMLElement[] {
    const milliseconds = row.time?.median ?? null;
    const rate = row.bytes !== null && milliseconds ? row.bytes / milliseconds / 1e6 : null;
    const why = row.why_bytes || row.why_time;
    const found = [
      figure(milliseconds && milliseconds * 1e3, row.time ? timing(row.time) : row.why_time),
      share(row.share),
      figure(row.bytes && row.bytes / 1e3, row.why_bytes, row.exact),
      figure(rate, why, row.exact),
      figure(row.flops === null ? null : row.flops / 1e6, row.why_flops, row.exact),
    ];
    const roofs = this.store.doc.torch!.rows.some((one) => one.roof);
    return roofs ? [...found, figure(row.percent, row.roof ? `of the ceiling ${row.roof}` : why)] : found;
  }

  private flip(i: number): void {
    const toggle = this.toggles[i];
    const below = this.rows[i].nextElementSibling as HTMLElement;
    const opens = below.hidden;
    below.hidden = !opens;
    toggle.setAttribute('aria-expanded', String(opens));
    if (opens) {
      this.selection.selectRow(i);
      if (!this.cards.has(i)) {
        this.store.run(this.load(i, below.firstElementChild as HTMLElement));
      }
    }
  }

  private async load(i: number, place: HTMLElement): Promise<void> {
    place.replaceChildren(h('p.bnb-quiet', { role: 'status' }, 'The kernel compiles for the card…'));
    try {
      const doc = await this.selection.card(i);
      place.replaceChildren();
      this.cards.set(i, this.store.mountCard(place, doc, cardHost(this.store.host, i)));
    } catch (error) {
      place.replaceChildren(h('p.bnb-empty', { role: 'status' }, (error as Error).message));
    }
  }

  private showInGraph(i: number): void {
    this.selection.selectRow(i);
    this.store.open('fusion');
  }

  private mark(): void {
    this.rows.forEach((row, i) => row.classList.toggle('bnb-kernel-selected', i === this.selection.row));
    if (this.selection.opened === this.selection.row && this.selection.row >= 0) {
      this.selection.opened = -1;
      this.open(this.selection.row);
    }
  }
}

/** The lines of the user's program that a kernel comes from. */
export function programLines(lines: readonly ProgramLine[]): HTMLElement[] {
  const found = lines
    .slice(0, MOST_LINES)
    .map(([where, file, text]) =>
      h('div.bnb-program-line', {}, h('small', { title: file }, where), ' ', h('code', {}, text)),
    );
  return lines.length > MOST_LINES
    ? [...found, h('small', {}, `and ${lines.length - MOST_LINES} more`)]
    : found;
}

function figure(value: number | null, why: string, exact = true): HTMLElement {
  const text = value === null ? (why ? 'unknown' : '') : `${exact ? '' : '≈ '}${digits(value)}`;
  return h('td.bnb-figure', { title: why || null }, text);
}

function share(value: number | null): HTMLElement {
  if (value === null) {
    return h('td');
  }
  const bar = h('span.bnb-share-bar', { 'aria-hidden': 'true' });
  bar.style.width = `${Math.max(100 * value, 0.5).toFixed(1)}%`;
  return h('td.bnb-figure.bnb-share-cell', {}, (100 * value).toFixed(1), bar);
}
