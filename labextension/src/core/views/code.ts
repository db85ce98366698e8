/**
 * The Code view: the source and two other levels of the same kernel, side by side. The line under the pointer is highlighted at all
 * levels and in the input cell. A level that the document omits says how to get it.
 */

import type { Language } from '../cm/languages';
import { lineColoursSwitch } from '../cm/line_colours';
import { findInListing, pane, type Pane } from '../cm/pane';
import { copyButton } from '../copy';
import { button, h } from '../dom';
import type { ViewLink } from '../link_target';
import { paneSwitches } from '../pane_switches';
import type { View } from '../schema';
import type { ShownParts } from '../shown_parts';
import type { Store } from '../store';
import { listingSearch, type Searched } from './listing_search';
import type { Mounted, ViewSpec } from './spec';
import { findStage, stageText } from './stage_link';

export const code: ViewSpec = {
  key: 'code',
  title: 'Code',
  tooltip: 'The source, the IR and the machine code side by side',
  empty: (doc) => (doc.views.length ? null : 'This cell compiled no kernel.'),
  mount: (panel, store, from) => new Code(panel, store, from),
};

/** A level of code. `value` is its key in the selector. */
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

/** The key of the source among the searched listings. */
const SOURCE = 'source';

class Code implements Mounted {
  private readonly source: Pane;
  private readonly columns: Column[];
  private readonly grid = h('div.bnb-columns');
  private readonly first = h('div.bnb-column');
  private readonly toggle: HTMLButtonElement;
  /** The user's choice to show the source column. null: shown only if no linked cell shows the same text. */
  private showSource: boolean | null = null;
  readonly link: ViewLink = {
    now: () => {
      const [ir, machine] = this.columns.map(({ chosen }) => levelText(this.store, chosen));
      return { ...(ir && { middle: ir }), ...(machine && { right: machine }) };
    },
    follow: (parts, missing) =>
      ['middle', 'right'].forEach((name, i) => {
        if (parts[name]) {
          this.columns[i].choose(levelIn(this.store, parts[name], missing));
        }
      }),
  };

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
    from?: Mounted,
  ) {
    this.toggle = button(
      '',
      () => {
        this.showSource = this.first.hidden;
        this.arrange();
      },
      { title: 'The source of the kernel beside its code; the cell shows the same text' },
    );
    const searched = listingSearch(
      store,
      () => this.searched(),
      (key, wanted) => this.store.run(this.find(key, wanted)),
    );
    panel.append(h('div.bnb-tools', {}, this.toggle, lineColoursSwitch(store)), searched, this.grid);
    const switches = paneSwitches(store, this.first, 'wrap');
    this.first.append(h('div.bnb-tools', {}, h('span.bnb-level', {}, 'source'), switches));
    this.grid.append(this.first);
    const box = this.first.appendChild(h('div.bnb-listing'));
    this.source = pane(box, 'Source of the kernel', 'code-source', store, () => store.doc.source.first_line);
    this.columns = (['ir', 'machine'] as const).map((kind) => new Column(this.grid, store, kind));
    this.arrange();
    this.paint();
    if (from instanceof Code) {
      this.showSource = from.showSource;
      this.columns.forEach((column, i) => column.choose(from.columns[i].chosen));
      this.arrange();
    }
  }

  update(change: string): void {
    if (change === 'selection') {
      this.source.highlight();
      this.columns.forEach((column) => column.highlight());
    } else if (change === 'host') {
      this.arrange();
      this.columns.forEach((column) => column.retry());
    } else {
      this.paint();
    }
  }

  /** Hides the source column if a linked cell shows the same text. */
  private arrange(): void {
    const linked = this.store.host.highlightSource !== undefined && this.store.host.cell === 'found';
    const hidden = !(this.showSource ?? !linked);
    this.first.hidden = hidden;
    this.grid.dataset.columns = hidden ? '2' : '3';
    this.toggle.textContent = hidden ? 'Show the source' : 'Hide the source';
    this.toggle.hidden = !linked && this.showSource === null;
    this.source.editor.requestMeasure();
  }

  dispose(): void {
    this.source.dispose();
    this.columns.forEach((column) => column.dispose());
  }

  /** All listings of the target, from the source to machine code. */
  private searched(): Searched[] {
    const { source } = this.store.doc;
    return [
      { key: SOURCE, title: 'source', text: () => Promise.resolve(source.text) },
      ...levels(this.store.current).map(({ value, label, hash }) => ({
        key: value,
        title: label.replace('IR after ', ''),
        text: async () => (await this.store.listing(hash))?.text ?? null,
      })),
    ];
  }

  /** Shows the lines of a listing that contain a text: IR in the middle, machine code on the right. */
  private async find(key: string, wanted: string): Promise<void> {
    if (key === SOURCE) {
      this.showSource = true;
      this.arrange();
      findInListing(this.source.editor, wanted);
    } else {
      await this.columns[key.startsWith('stage:') ? 0 : 1].find(key, wanted);
    }
  }

  private paint(): void {
    const { source } = this.store.doc;
    const text = source.text.replace(/\n$/, '');
    const lines = text.split('\n').map((_, i) => source.first_line + i);
    this.source.show({ text, lines }, 'python');
    const found = levels(this.store.current);
    this.columns.forEach((column) => column.setLevels(found));
  }
}

/** Returns the levels of a target, from the IR after the front end to machine code. */
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

/** Writes a level for a link: `ptx`, or the stage. */
function levelText({ stages }: Store, level: string): string {
  const [kind, at] = level.split(':');
  return kind === 'stage' ? stageText(stages, Number(at)) : level;
}

/** Reads a level of a link. */
function levelIn({ stages }: Store, text: string, missing: (sentence: string) => void): string {
  const code = CODE.some(([key]) => key === text);
  return code ? text : `stage:${findStage(stages, text, missing)}`;
}

/** One of the two columns next to the source, with a selector for its level. */
class Column {
  private readonly choice: HTMLSelectElement;
  private readonly box = h('div.bnb-listing');
  private readonly pane: Pane;
  private readonly missing = h('p.bnb-empty', { hidden: true });
  /** The explanation of the instruction on the cursor's line. It serves keyboard users, as the tooltip serves pointer users. */
  private readonly explained = h('p.bnb-explained', { role: 'status' });
  private levels: Level[] = [];
  private paintToken = 0;
  private readonly stopAsks = this.store.shown.onAsk((parts) => this.chooseStage(parts));

  constructor(
    parent: HTMLElement,
    private readonly store: Store,
    private readonly kind: 'ir' | 'machine',
  ) {
    this.choice = h('select.bnb-select', {
      'aria-label': kind === 'ir' ? 'Level in the middle' : 'Level on the right',
      title: 'The IR after a pass, or a level of machine code',
    });
    this.choice.addEventListener('change', () => {
      this.store.run(this.paint());
      this.tellStage();
    });
    const copy = copyButton(
      () => store.host,
      async () => (await store.listing(this.level?.hash))?.text ?? null,
      'Copy this text',
    );
    const element = h('div.bnb-column');
    const tools = h('div.bnb-tools', {}, this.choice, copy, paneSwitches(store, element, 'wrap'));
    element.append(tools, this.missing, this.box, this.explained);
    parent.append(element);
    this.pane = pane(
      this.box,
      kind === 'ir' ? 'IR' : 'Machine code',
      `code-${kind}`,
      store,
      undefined,
      (text) => {
        this.explained.textContent = text;
      },
    );
  }

  /** Sets the available levels. Keeps the selected level if the new target has it. */
  setLevels(found: Level[]): void {
    const asked = this.kind === 'machine' ? this.store.requestedLevel : null;
    const before = asked ?? this.choice.value;
    this.store.requestedLevel = asked ? null : this.store.requestedLevel;
    this.levels = found;
    const selected = found.some((l) => l.value === before)
      ? before
      : (this.wantedStage(this.store.shown.wanted) ?? this.requestedLevel() ?? this.defaultLevel());
    this.choice.replaceChildren(
      ...found.map((l) => h('option', { value: l.value, selected: l.value === selected }, l.label)),
    );
    this.store.run(this.paint());
  }

  /** The key of the selected level. */
  get chosen(): string {
    return this.choice.value;
  }

  /** Selects a level if the target has it. */
  choose(level: string): void {
    if (this.levels.some(({ value }) => value === level)) {
      this.choice.value = level;
      this.store.run(this.paint());
    }
  }

  /** Selects a level, and the next match of a text in it. */
  async find(level: string, wanted: string): Promise<void> {
    this.choice.value = level;
    await this.paint();
    this.tellStage();
    findInListing(this.pane.editor, wanted);
  }

  highlight(): void {
    this.pane.highlight();
  }

  /** Asks again for a text that the document omits, since a kernel may have it. */
  retry(): void {
    if (!this.missing.hidden) {
      this.store.run(this.paint());
    }
  }

  dispose(): void {
    this.stopAsks();
    this.pane.dispose();
  }

  /** Returns the level of the stage that a widget names. */
  private wantedStage({ stage }: Partial<ShownParts>): string | undefined {
    const at = this.kind === 'ir' ? this.store.stages.findIndex((s) => s.name === stage) : -1;
    return at >= 0 ? `stage:${at}` : undefined;
  }

  private tellStage(): void {
    const { level } = this;
    if (this.kind === 'ir' && level?.language === 'ir') {
      this.store.shown.tell({ stage: this.store.stages[this.levels.indexOf(level)].name });
    }
  }

  private chooseStage(parts: Partial<ShownParts>): void {
    const wanted = this.wantedStage(parts);
    if (wanted && wanted !== this.choice.value) {
      this.choice.value = wanted;
      this.store.run(this.paint());
    }
  }

  /** Returns the level of machine code that the cell requested by `--show`. */
  private requestedLevel(): string | undefined {
    const shown = this.kind === 'machine' ? (this.store.doc.show ?? []) : [];
    return shown.find((key) => this.levels.some((level) => level.value === key));
  }

  private defaultLevel(): string {
    const stages = this.levels.filter((l) => l.language === 'ir');
    const machine = ['ptx', 'assembly', 'sass', 'llvm'].find((key) =>
      this.levels.some((l) => l.value === key),
    );
    return (this.kind === 'ir' ? stages[stages.length - 1]?.value : machine) ?? this.levels[0]?.value ?? '';
  }

  private get level(): Level | undefined {
    return this.levels.find((l) => l.value === this.choice.value);
  }

  private async paint(): Promise<void> {
    const token = ++this.paintToken;
    const level = this.level;
    const listing = await this.store.listing(level?.hash);
    if (token !== this.paintToken) {
      return;
    }
    this.missing.hidden = listing !== null;
    this.box.hidden = listing === null;
    this.missing.textContent = listing ? '' : missingReason(this.store, level);
    this.explained.textContent = '';
    this.pane.show(listing, level?.language ?? 'text');
  }
}

function missingReason(store: Store, level: Level | undefined): string {
  const error = store.current.error;
  if (error || !level) {
    return error || 'There is no code for this target.';
  }
  if (store.current.later?.some((key) => key === level.value)) {
    return store.host.request
      ? `Loading the ${level.label}…`
      : `The saved notebook does not contain the ${level.label}. Run the cell again to see it.`;
  }
  return `The ${level.label} is not stored, because the card is at its limit of 600 kB. Run the cell again to see it.`;
}
