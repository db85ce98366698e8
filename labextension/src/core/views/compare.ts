/**
 * The Compare view: two or more compilations side by side (blocknb/notebook/side_by_side.py). A table has their settings, resources and
 * times. Below it, the first side is compared with one of the others at a chosen level: source, IR after a pass, LLVM, PTX, SASS.
 */

import { type Check, flag, integer, list, nullable, object, text, tuple, word } from '../check';
import { comparison, type Comparison } from '../cm/comparison';
import type { Language } from '../cm/languages';
import { h, renderBackquotes } from '../dom';
import { type LinkParts, numberIn } from '../link_target';
import type { Run } from '../hunks';
import { paneSwitches } from '../pane_switches';
import { PendingLink } from '../pending_link';
import { count, size, timing } from '../plot/numbers';
import type { ChangeSentence, Compared, ComparedSide } from '../schema';
import type { Store } from '../store';
import { sentenceList, sentenceLists } from './change_sentences';
import type { Mounted, ViewSpec } from './spec';

/** A level of two sides: its sentences, and the lines that correspond. */
interface ComparedLevel {
  key: string;
  differs: boolean;
  sentences: ChangeSentence[];
  same: Run[];
  aligned: Run[];
}

/** The comparison of the first side with the side number `side`. */
interface ComparedPair {
  side: number;
  label: string;
  first: string;
  parts_at: string | null;
  levels: ComparedLevel[];
}

const runs = list(tuple(integer(0, 1e7), integer(0, 1e7), integer(1, 1e7)), 1_000_000);
const level = object({ key: word, differs: flag, sentences: sentenceList, same: runs, aligned: runs });
const pairs: Check = list(
  object({
    side: integer(1, 100),
    label: word,
    first: text(1 << 16),
    parts_at: nullable(word),
    levels: list(level, 1000),
  }),
  100,
);

const TITLES: Readonly<Record<string, string>> = {
  source: 'source',
  llvm: 'LLVM',
  ptx: 'PTX',
  sass: 'SASS',
  assembly: 'assembly',
};

export const compare: ViewSpec = {
  key: 'compare',
  title: 'Compare',
  tooltip: 'The compilations side by side',
  empty: (doc) => (doc.compare ? null : 'Use blocknb.compare(a, b) or %blockdiff a b.'),
  mount: (panel, store) => new CompareView(panel, store),
};

/** Mounts the view at the machine code, or at the PTX if there is no machine code. */
export function compareMachineCode(panel: HTMLElement, store: Store): Mounted {
  return new CompareView(panel, store, ['sass', 'ptx']);
}

class CompareView implements Mounted {
  private readonly table = h('div.bnb-results', { tabindex: 0, role: 'region', 'aria-label': 'Sides' });
  private readonly first = h('p.bnb-parting', { role: 'status' });
  private readonly pair = h('select.bnb-select', { 'aria-label': 'Side on the right' });
  private readonly level = h('select.bnb-select', { 'aria-label': 'Level' });
  private readonly told = h('div.bnb-changes');
  private readonly text = h('div.bnb-listing');
  private pairs: ComparedPair[] = [];
  private diff: Comparison | null = null;
  private token = 0;
  readonly link = new PendingLink(
    () => ({ pair: this.pair.value || '0', ...(this.level.value && { level: this.level.value }) }),
    (parts, missing) => this.showLink(parts, missing),
  );

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
    /** The levels to begin with, the first that exists. */
    private readonly wanted: readonly string[] = [],
  ) {
    this.pair.addEventListener('change', () => this.choosePair());
    this.level.addEventListener('change', () => store.run(this.paintLevel()));
    const base = this.compared.sides[0].label;
    panel.append(
      this.table,
      h(
        'div.bnb-tools',
        {},
        h('label', {}, `${base} and `, this.pair),
        h('label', {}, 'at the level ', this.level),
        paneSwitches(store, panel, 'wrap', 'unified'),
      ),
      this.first,
      this.told,
      this.text,
    );
    store.run(this.load());
  }

  update(change: string): void {
    if (change === 'selection') {
      this.diff?.highlight();
    } else if (change !== 'host') {
      this.store.run(this.load());
    }
  }

  dispose(): void {
    this.diff?.dispose();
  }

  private get compared(): Compared {
    return this.store.doc.compare!;
  }

  private async load(): Promise<void> {
    const found = (await this.store.inflated(this.compared.packed, pairs)) as ComparedPair[] | null;
    this.pairs = (found ?? []).filter(({ side }) => side < this.compared.sides.length);
    this.table.replaceChildren(sidesTable(this.compared.sides));
    this.pair.replaceChildren(...this.pairs.map((one, i) => h('option', { value: i }, one.label)));
    this.choosePair();
    this.link.retry();
  }

  private showLink(parts: LinkParts, missing: (sentence: string) => void): boolean {
    if (!this.pairs.length) {
      return false;
    }
    const at = numberIn(parts, 'pair', this.pairs.length - 1, missing);
    this.pair.value = String(at ?? Number(this.pair.value));
    this.choosePair();
    const has = this.chosen!.levels.some(({ key }) => key === parts.level);
    if (has) {
      this.level.value = parts.level;
      this.store.run(this.paintLevel());
    } else if (parts.level) {
      missing(`There is no level ${parts.level}`);
    }
    return true;
  }

  private get chosen(): ComparedPair | undefined {
    return this.pairs[Number(this.pair.value)];
  }

  private choosePair(): void {
    const pair = this.chosen;
    if (!pair) {
      return;
    }
    const before = this.level.value;
    const keys = pair.levels.map(({ key }) => key);
    const first = this.wanted.find((key) => keys.includes(key)) ?? pair.parts_at ?? 'source';
    const selected = keys.includes(before) ? before : first;
    this.level.replaceChildren(
      ...pair.levels.map(({ key, differs }) => {
        const title = TITLES[key] ?? `IR after ${key}`;
        return h('option', { value: key, selected: key === selected }, differs ? title : `${title} (same)`);
      }),
    );
    this.store.run(this.paintLevel());
  }

  private async paintLevel(): Promise<void> {
    const token = ++this.token;
    const pair = this.chosen;
    const level = pair?.levels.find(({ key }) => key === this.level.value);
    if (!pair || !level) {
      return;
    }
    const sides = [this.compared.sides[0], this.compared.sides[pair.side]];
    const found = sides.map((side) => textOf(side, level.key));
    const [a, b] = await Promise.all(found.map(({ hash }) => this.store.listing(hash)));
    if (token !== this.token) {
      return;
    }
    this.diff?.dispose();
    this.diff = null;
    // The whole sentence stands at its own level only; the other levels name the place.
    const here = level.key === pair.parts_at;
    const first = here ? pair.first : pair.first.split(': ')[0];
    this.first.replaceChildren(h('strong', {}, 'First difference: '), ...renderBackquotes(`${first}.`));
    const sentences = level.sentences.filter(({ text }) => !(here && pair.first.endsWith(text)));
    this.told.replaceChildren(...sentenceLists(sentences, this.store, 'compare'));
    this.told.hidden = !sentences.length;
    if (!a || !b) {
      const why = 'This text is not stored, to keep the notebook small. Export the comparison to see it.';
      this.text.replaceChildren(h('p.bnb-empty', {}, why));
      return;
    }
    this.text.replaceChildren();
    const isSource = level.key === 'source';
    const [left, right] = [a, b].map((listing, i) => ({
      listing,
      label: sides[i].label,
      firstLine: isSource ? sides[i].first_line : 1,
    }));
    const hints = { matched: { same: level.same, aligned: level.aligned } };
    this.diff = comparison(
      this.text,
      [left, { ...right, hints }],
      found[0].language,
      this.store,
      'compare',
      true,
    );
  }
}

function textOf(side: ComparedSide, key: string): { hash: string | null; language: Language } {
  if (key === 'source') {
    return { hash: side.source, language: 'python' };
  }
  const found = side.levels.find((one) => one.key === key);
  return { hash: found?.text ?? null, language: (found?.language ?? 'text') as Language };
}

/** The device of a side's time. The code of another target may stand in its column: the arrays decide where a kernel runs. */
const deviceOf = ({ time }: ComparedSide): string => time?.device ?? '';

/** The title of the times, with the device if all times are of one. */
function timeTitle(sides: readonly ComparedSide[]): string {
  const devices = [...new Set(sides.map(deviceOf).filter(Boolean))];
  return devices.length === 1 ? `time on ${named(devices[0])} (separate runs)` : 'time (separate runs)';
}

const named = (device: string): string => (device === 'CPU' ? 'the CPU' : device);

/** The time of a side. The title or the text names the device once. */
function timeOf(side: ComparedSide, title: string): string {
  const { time } = side;
  if (!time) {
    return 'not measured';
  }
  const device = deviceOf(side);
  const shown = timing({ ...time, device: '' });
  return !device || title.includes(named(device)) ? shown : `on ${named(device)}: ${shown}`;
}

/** The table of the sides: a row for each fact, a column for each side. Facts that differ are marked. */
export function sidesTable(sides: readonly ComparedSide[]): HTMLElement {
  const setting = (side: ComparedSide, name: string): string =>
    side.constants[name] ?? side.options[name] ?? '';
  const all = [...new Set(sides.flatMap((side) => Object.keys({ ...side.constants, ...side.options })))];
  const names = all.filter((name) => sides.some((side) => setting(side, name) !== setting(sides[0], name)));
  const equal = all
    .filter((name) => !names.includes(name))
    .map((name) => `${name}=${setting(sides[0], name)}`);
  const times = timeTitle(sides);
  const facts: [string, (side: ComparedSide) => string][] = [
    ['kernel', (side) => side.kernel],
    ['target', (side) => side.target],
    ...names.map((name): [string, (side: ComparedSide) => string] => [name, (side) => setting(side, name)]),
    [times, (side) => timeOf(side, times)],
    ['registers per thread', (side) => count(side.resources.registers)],
    ['spills per thread', (side) => bytes(side.resources.spill_bytes)],
    ['shared memory per CTA', (side) => bytes(side.resources.shared_bytes)],
    ['threads per CTA', (side) => count(side.resources.threads)],
    ['occupancy', (side) => (side.resources.occupancy ? `${side.resources.occupancy.percent} %` : '')],
  ];
  const rows = facts.map(([title, of]) => {
    const values = sides.map(of);
    // The times come from separate runs, so a difference of them alone means nothing.
    const differs = title !== times && values.some((value) => value !== values[0]);
    const row = h('tr', { class: differs ? 'bnb-differs' : null }, h('th', { scope: 'row' }, title));
    row.append(...values.map((value) => h('td', {}, value)));
    return row;
  });
  const head = h('tr', {}, h('td'), ...sides.map((side) => h('th', { scope: 'col' }, side.label)));
  const caption = equal.length ? h('caption', {}, `Equal on all sides: ${equal.join(', ')}.`) : null;
  return h('table.bnb-table', {}, caption, h('thead', {}, head), h('tbody', {}, ...rows));
}

function bytes(value: number | null): string {
  return value === null ? '' : size(value);
}
