/**
 * The versions of a kernel with their numbers, and any two of them side by side: their sources, or the IR after any pass, and which
 * pass is the first where they part. What the document did not store is asked of the kernel, as long as it lives.
 */

import { diffPane, type DiffPane } from '../cm/diff';
import { button, h, uniqueId } from '../dom';
import { difference } from '../hunks';
import type { Listing, Version } from '../schema';
import type { Store } from '../store';
import { rate, time } from '../plot/numbers';
import type { Mounted, ViewSpec } from './spec';

export const history: ViewSpec = {
  key: 'history',
  title: 'History',
  empty: (doc) =>
    doc.history?.versions.length || doc.diff
      ? null
      : 'No version of this kernel has been measured in a %%blockkernel cell of this session yet.',
  mount: (panel, store) => new HistoryView(panel, store),
};

const SOURCE = 'source';
const ASKED = 'asked';

class HistoryView implements Mounted {
  private readonly table = h('div.bnb-results', {
    tabindex: 0,
    role: 'region',
    'aria-label': 'The versions',
  });
  private readonly what = h('select.bnb-select', { 'aria-label': 'What to compare' });
  private readonly status = h('p.bnb-quiet', { role: 'status' });
  private readonly text = h('div.bnb-listing');
  private readonly listings = new Map<string, Promise<Map<string, Listing>>>();
  private a = -1;
  private b = -1;
  private pair: DiffPane | null = null;
  private painted = 0;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.what.addEventListener('change', () => void this.paintText());
    const first = button('First pass where they part', () => void this.findParting());
    panel.append(
      this.table,
      h('div.bnb-tools', {}, h('label', {}, 'compare ', this.what), first),
      this.status,
      this.text,
    );
    this.reset();
  }

  update(change: string): void {
    if (change === 'selection') {
      this.pair?.light();
    } else if (change === 'host') {
      this.listings.clear();
    } else {
      this.reset();
    }
  }

  dispose(): void {
    this.pair?.dispose();
  }

  private get versions(): Version[] {
    return this.store.doc.history?.versions ?? [];
  }

  private reset(): void {
    this.listings.clear();
    const shown = this.versions.findIndex((v) => v.version === this.store.doc.version);
    this.b = shown >= 0 ? shown : this.versions.length - 1;
    this.a = this.b > 0 ? this.b - 1 : Math.min(1, this.versions.length - 1);
    const { a, b } = this.store.doc.diff ?? {};
    if (a?.version && b?.version) {
      const places = [a, b].map((side) => this.versions.findIndex((v) => v.version === side.version));
      [this.a, this.b] = places.every((i) => i >= 0) ? places : [this.a, this.b];
    }
    this.paintTable();
    const shownHere = this.store.stages.map((stage) => stage.name);
    const names = merged([shownHere, ...this.versions.map((version) => this.passes(version) ?? [])]);
    const options = [h('option', { value: SOURCE }, 'their sources')];
    if (this.store.doc.diff) {
      const { a, b } = this.store.doc.diff;
      options.unshift(h('option', { value: ASKED }, `${a.label} and ${b.label}`));
    }
    options.push(...names.map((name) => h('option', { value: name }, `the IR after ${name}`)));
    this.what.replaceChildren(...options);
    void this.paintText();
  }

  private paintTable(): void {
    const titles = [
      'left',
      'right',
      'version',
      'changed',
      'result',
      'time',
      'speed',
      'registers',
      'shared',
      'spills',
      'first run',
    ];
    const head = h('tr', {}, ...titles.map((text) => h('th', { scope: 'col' }, text)));
    const body = h('tbody', {}, ...this.versions.map((version, i) => this.row(version, i)));
    const caption = h(
      'caption',
      {},
      'versions of this kernel in the session; a rerun of the same text is a measurement',
    );
    this.table.replaceChildren(h('table.bnb-table', {}, caption, h('thead', {}, head), body));
  }

  private row(version: Version, i: number): HTMLElement {
    const pick = (side: 'a' | 'b'): HTMLElement => {
      const input = h('input', {
        type: 'radio',
        name: `${this.group}-${side}`,
        checked: this[side] === i,
        'aria-label': `version ${version.number} on the ${side === 'a' ? 'left' : 'right'}`,
      });
      input.addEventListener('change', () => {
        this[side] = i;
        if (this.what.value === ASKED) {
          this.what.value = SOURCE;
        }
        void this.paintText();
      });
      return h('td', {}, input);
    };
    const here = version.version === this.store.doc.version ? ' (this card)' : '';
    const times = version.measurements > 1 ? `${version.measurements} measurements` : '';
    const cells = [
      version.note || 'first',
      RESULT[String(version.ok)],
      version.milliseconds === null ? 'not run' : time(version.milliseconds),
      version.rate ? rate(version.rate) : '',
      amount(version.registers),
      amount(version.shared_bytes, ' B'),
      amount(version.spill_bytes, ' B'),
      version.first.replace('T', ' ').replace(/\+.*$/, ' UTC'),
    ];
    const name = h('th', { scope: 'row', title: times }, `${version.number}${here}`);
    return h('tr', {}, pick('a'), pick('b'), name, ...cells.map((text) => h('td', {}, text)));
  }

  private readonly group = uniqueId('versions');

  private async paintText(): Promise<void> {
    const turn = ++this.painted;
    const what = this.what.value;
    const [a, b] =
      what === ASKED
        ? await this.asked()
        : await Promise.all([this.side(this.a, what), this.side(this.b, what)]);
    if (turn !== this.painted) {
      return;
    }
    this.pair?.dispose();
    this.pair = null;
    this.text.replaceChildren();
    const without = [this.versions[this.a], this.versions[this.b]].find(
      (version) =>
        what !== SOURCE && what !== ASKED && version && this.passes(version)?.includes(what) === false,
    );
    if (without) {
      const said = `The pass ${what} does not apply to version ${without.number}, and was no part of its compilation.`;
      this.text.append(h('p.bnb-empty', {}, said));
      return;
    }
    if (!a || !b) {
      const reason = this.store.host.request
        ? 'the kernel no longer has it'
        : 'the saved document has no room for it, and no kernel is there to ask';
      this.text.append(
        h(
          'p.bnb-empty',
          {},
          this.versions.length < 2 && what !== ASKED ? ALONE : `This text is not there: ${reason}.`,
        ),
      );
      return;
    }
    const byOp = what === ASKED && this.store.doc.diff!.by_op;
    const language =
      what === SOURCE || (what === ASKED && this.store.doc.diff!.a.language === 'python') ? 'python' : 'ir';
    this.pair = diffPane(this.text, a, b, language, this.store, 'history', !byOp);
  }

  private async asked() {
    const { a, b } = this.store.doc.diff!;
    const made = async (side: typeof a) => {
      const listing = await this.store.listing(side.text);
      return listing && { listing, label: side.label, firstLine: side.first_line };
    };
    return Promise.all([made(a), made(b)]);
  }

  private async side(index: number, what: string) {
    const version = this.versions[index];
    if (!version || this.versions.length < 2) {
      return null;
    }
    const label = `version ${version.number}`;
    if (what === SOURCE) {
      const listing = await this.store.listing(version.source);
      return listing && { listing, label, firstLine: version.first_line };
    }
    const listing = await this.stage(version, what);
    return listing && { listing, label: `${label}, IR after ${what}` };
  }

  /** The passes that a version went through for the target looked at: one that does not apply to a kernel is not among them. None where
   * nothing is known of them. */
  private passes(version: Version): string[] | undefined {
    const here = version.version === this.store.doc.version;
    const { target } = this.store.current;
    const stages = here ? this.store.stages : version.views?.find((v) => v.target === target)?.stages;
    return stages?.map((stage) => stage.name);
  }

  /** A pass's listing of a version, for the target looked at: from the card itself, the document, or the kernel. */
  private async stage(version: Version, name: string): Promise<Listing | null> {
    if (version.version === this.store.doc.version) {
      return this.store.listing(this.store.stages.find((stage) => stage.name === name)?.text);
    }
    const { target } = this.store.current;
    const stored = version.views?.find((v) => v.target === target)?.stages.find((s) => s.name === name);
    if (stored?.text) {
      return this.store.listing(stored.text);
    }
    if (!this.store.host.request) {
      return null;
    }
    let asked = this.listings.get(version.version);
    if (!asked) {
      asked = this.ask(version.version);
      this.listings.set(version.version, asked);
    }
    return (await asked).get(`${target}:${name}`) ?? null;
  }

  private async ask(version: string): Promise<Map<string, Listing>> {
    type Answer = { views: { target: string; stages: { name: string; listing: Listing }[] }[] };
    const found = new Map<string, Listing>();
    try {
      const answer = (await this.store.host.request!('version', { version })) as Answer;
      for (const view of answer.views) {
        view.stages.forEach((stage) => found.set(`${view.target}:${stage.name}`, stage.listing));
      }
    } catch (error) {
      this.status.textContent = (error as Error).message;
    }
    return found;
  }

  /** Opens the first pass after which the two versions' IR differs. */
  private async findParting(): Promise<void> {
    const [one, two] = [this.versions[this.a], this.versions[this.b]];
    if (!one || !two) {
      return;
    }
    this.status.textContent = 'comparing…';
    const [these, those] = [this.passes(one), this.passes(two)];
    const names = these ?? those ?? this.store.stages.map((stage) => stage.name);
    for (const name of names.filter((n) => (those ?? names).includes(n))) {
      const [a, b] = await Promise.all([this.stage(one, name), this.stage(two, name)]);
      if (!a || !b) {
        this.status.textContent = `The IR after ${name} is not there for both versions.`;
        return;
      }
      if (difference(a, b, true).hunks.length) {
        this.status.textContent = `Versions ${one.number} and ${two.number} part at ${name}.`;
        this.what.value = name;
        return this.paintText();
      }
    }
    this.status.textContent = `Versions ${one.number} and ${two.number} have the same IR after every pass.`;
  }
}

const ALONE = 'There is one version so far: change the kernel’s text and run its cell again to compare two.';
const RESULT: Readonly<Record<string, string>> = { true: '✓ right', false: '✗ wrong', null: 'not checked' };

/** All names of some lists in one order, each behind the one that it follows in its own. */
function merged(lists: string[][]): string[] {
  const found: string[] = [];
  for (const list of lists) {
    list.forEach((name, i) => {
      if (!found.includes(name)) {
        found.splice(i ? found.indexOf(list[i - 1]) + 1 : 0, 0, name);
      }
    });
  }
  return found;
}

function amount(value: number | null, unit = ''): string {
  return value === null ? '–' : `${value}${unit}`;
}
