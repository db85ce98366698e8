/**
 * The source beside two other levels of the same kernel, all linked: what the pointer is on in one lights up in the others and in
 * the input cell. A level that was left out says how to get it.
 */

import type { Language } from '../cm/languages';
import { pane, type Pane } from '../cm/pane';
import { button, h } from '../dom';
import type { Listing, View } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from './spec';

export const code: ViewSpec = {
  key: 'code',
  title: 'Code',
  empty: (doc) => (doc.views.length ? null : 'Nothing was compiled here.'),
  mount: (panel, store) => new Code(panel, store),
};

/** One level that can be looked at: `value` is its key in the selector. */
interface Level {
  value: string;
  label: string;
  hash: string | null | undefined;
  language: Language;
}

const CODE: [keyof NonNullable<View['code']>, string, Language][] = [
  ['llvm', 'LLVM IR', 'llvm'],
  ['ptx', 'PTX', 'ptx'],
  ['sass', 'SASS', 'sass'],
  ['assembly', 'assembly', 'asm'],
];

class Code implements Mounted {
  private readonly source: Pane;
  private readonly columns: Column[];
  private readonly grid = h('div.bnb-columns');
  private readonly first = h('div.bnb-column');
  private readonly toggle: HTMLButtonElement;
  /** What the user chose for the source's column; null: shown where no cell is linked that would show the same. */
  private wanted: boolean | null = null;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.toggle = button('', () => {
      this.wanted = this.first.hidden;
      this.arrange();
    });
    panel.append(h('div.bnb-tools', {}, this.toggle), this.grid);
    this.first.append(h('div.bnb-tools', {}, h('span.bnb-level', {}, 'source')));
    this.grid.append(this.first);
    const box = this.first.appendChild(h('div.bnb-listing'));
    this.source = pane(box, 'Source of the kernel', 'code-source', store, () => store.doc.source.first_line);
    this.columns = ['ir', 'machine'].map((want) => new Column(this.grid, store, want));
    this.arrange();
    this.paint();
  }

  update(change: string): void {
    if (change === 'selection') {
      this.source.light();
      this.columns.forEach((column) => column.light());
    } else if (change === 'host') {
      this.arrange();
    } else {
      this.paint();
    }
  }

  /** In a notebook the cell itself is the source, and its column here would say it twice. */
  private arrange(): void {
    const linked = this.store.host.linkSource !== undefined && this.store.host.cell === 'found';
    const hidden = !(this.wanted ?? !linked);
    this.first.hidden = hidden;
    this.grid.dataset.columns = hidden ? '2' : '3';
    this.toggle.textContent = hidden ? 'Show the source here, too' : 'Hide the source';
    this.toggle.hidden = !linked && this.wanted === null;
    this.source.editor.requestMeasure();
  }

  dispose(): void {
    this.source.dispose();
    this.columns.forEach((column) => column.dispose());
  }

  private paint(): void {
    const { source } = this.store.doc;
    const text = source.text.replace(/\n$/, '');
    const lines = text.split('\n').map((_, i) => source.first_line + i);
    this.source.show({ text, lines }, 'python');
    const found = levels(this.store.current);
    this.columns.forEach((column) => column.offer(found));
  }
}

/** The levels of a target from the front end's IR down to what the machine runs. */
export function levels(view: View): Level[] {
  const stages = (view.stages ?? []).map((stage, i): Level => {
    return { value: `stage:${i}`, label: `IR after ${stage.name}`, hash: stage.text, language: 'ir' };
  });
  const below = CODE.filter(([key]) => view.code?.[key] || view.later?.includes(key)).map(
    ([key, label, language]): Level => {
      return { value: key, label, hash: view.code?.[key], language };
    },
  );
  return [...stages, ...below];
}

/** One of the two columns beside the source, with its choice of level. */
class Column {
  private readonly choice: HTMLSelectElement;
  private readonly box = h('div.bnb-listing');
  private readonly pane: Pane;
  private readonly missing = h('p.bnb-empty', { hidden: true });
  /** What the instruction on the cursor's line does: for the keyboard, what the tooltip is for the pointer. */
  private readonly explained = h('p.bnb-explained', { role: 'status' });
  private levels: Level[] = [];
  private painted = 0;

  constructor(
    parent: HTMLElement,
    private readonly store: Store,
    private readonly want: string,
  ) {
    this.choice = h('select.bnb-select', {
      'aria-label': want === 'ir' ? 'Level in the middle' : 'Level on the right',
    });
    this.choice.addEventListener('change', () => void this.paint());
    const copy = button('Copy', () => void this.copy());
    parent.append(
      h(
        'div.bnb-column',
        {},
        h('div.bnb-tools', {}, this.choice, copy),
        this.missing,
        this.box,
        this.explained,
      ),
    );
    this.pane = pane(
      this.box,
      want === 'ir' ? 'IR' : 'Machine code',
      `code-${want}`,
      store,
      undefined,
      (text) => {
        this.explained.textContent = text;
      },
    );
  }

  /** Keeps the level that was chosen where the new target has it, too. */
  offer(found: Level[]): void {
    const before = this.choice.value;
    this.levels = found;
    const wanted = found.some((l) => l.value === before) ? before : (this.asked() ?? this.preferred());
    this.choice.replaceChildren(
      ...found.map((l) => h('option', { value: l.value, selected: l.value === wanted }, l.label)),
    );
    void this.paint();
  }

  light(): void {
    this.pane.light();
  }

  dispose(): void {
    this.pane.dispose();
  }

  /** The level of machine code that the cell asked to see. */
  private asked(): string | undefined {
    const shown = this.want === 'machine' ? (this.store.doc.show ?? []) : [];
    return shown.find((key) => this.levels.some((level) => level.value === key));
  }

  private preferred(): string {
    const stages = this.levels.filter((l) => l.language === 'ir');
    const machine = ['ptx', 'assembly', 'sass', 'llvm'].find((key) =>
      this.levels.some((l) => l.value === key),
    );
    return (this.want === 'ir' ? stages[stages.length - 1]?.value : machine) ?? this.levels[0]?.value ?? '';
  }

  private get level(): Level | undefined {
    return this.levels.find((l) => l.value === this.choice.value);
  }

  private async paint(): Promise<void> {
    const turn = ++this.painted;
    const level = this.level;
    const listing = await this.store.listing(level?.hash);
    if (turn !== this.painted) {
      return;
    }
    this.missing.hidden = listing !== null;
    this.box.hidden = listing === null;
    this.missing.textContent = listing ? '' : whyMissing(this.store, level);
    this.explained.textContent = '';
    this.pane.show(listing, level?.language ?? 'text');
  }

  private async copy(): Promise<void> {
    const listing: Listing | null = await this.store.listing(this.level?.hash);
    if (listing) {
      this.store.host.copy?.(listing.text);
    }
  }
}

function whyMissing(store: Store, level: Level | undefined): string {
  const error = store.current.error;
  if (error || !level) {
    return error || 'There is no code for this target.';
  }
  if (store.current.later?.some((key) => key === level.value)) {
    return store.host.request
      ? `The ${level.label} is being read…`
      : `The ${level.label} had not been read when this was saved; run the cell again to see it.`;
  }
  return `The ${level.label} was left out to keep the notebook small; run the cell again to see it.`;
}
