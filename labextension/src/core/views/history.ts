/**
 * The History view: the versions of a kernel with their measurements, and a comparison of any two versions. The user can compare their
 * sources or their IR after a pass, and find the first pass where they differ. A live kernel supplies texts that the document omits.
 */

import { comparison, type Comparison } from '../cm/comparison';
import { button, h, uniqueId } from '../dom';
import { readable } from '../documents';
import { difference } from '../hunks';
import { paintSwitches, paneSwitches } from '../pane_switches';
import type { Document, Listing, Version } from '../schema';
import { Store } from '../store';
import { rate, timing } from '../plot/numbers';
import { compareMachineCode } from './compare';
import type { Mounted, ViewSpec } from './spec';
import { versionRuns } from './version_runs';

export const history: ViewSpec = {
  key: 'history',
  title: 'History',
  tooltip: 'The versions of this kernel, their measurements and their differences',
  empty: (doc) =>
    doc.history?.versions.length || doc.diff
      ? null
      : 'No %%blockkernel cell of this session has measured a version of this kernel yet.',
  mount: (panel, store) => new HistoryView(panel, store),
};

const SOURCE = 'source';
const REQUESTED = 'requested';

class HistoryView implements Mounted {
  private readonly table = h('div.bnb-results', {
    tabindex: 0,
    role: 'region',
    'aria-label': 'Versions',
  });
  private readonly what = h('select.bnb-select', {
    'aria-label': 'What to compare',
    title: 'The source, or the IR after a pass',
  });
  private readonly runs = h('div.bnb-results');
  private readonly status = h('p.bnb-quiet', { role: 'status' });
  private readonly text = h('div.bnb-listing');
  private readonly listings = new Map<string, Promise<Map<string, Listing>>>();
  private a = -1;
  private b = -1;
  /** The versions that the user picked, by key. null: the view chooses. */
  private picked: string[] | null = null;
  private diff: Comparison | null = null;
  private readonly levels: HTMLButtonElement;
  /** The Compare view of two versions, while it is shown. */
  private compared: Mounted | null = null;
  private paintToken = 0;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.what.addEventListener('change', () => {
      this.pick();
      this.store.run(this.paintText());
    });
    const first = button('Find first differing pass', () => this.store.run(this.findFirstDifference()), {
      title: 'Select the first pass after which the IR of the two versions differs',
    });
    this.levels = button('Compare LLVM, PTX and SASS', () => this.store.run(this.compareLevels()), {
      title: 'Compare all levels of the two versions, as %blockdiff does',
    });
    const pane = h('div.bnb-main');
    const switches = paneSwitches(store, pane, 'wrap', 'unified');
    const tools = h('div.bnb-tools', {}, h('label', {}, 'compare ', this.what), first, this.levels, switches);
    pane.append(tools, this.status, this.text);
    panel.append(this.table, this.runs, pane);
    this.reset();
  }

  update(change: string): void {
    if (change === 'selection') {
      this.diff?.highlight();
    } else if (change === 'host') {
      this.listings.clear();
    } else {
      this.reset();
    }
  }

  dispose(): void {
    this.diff?.dispose();
    this.compared?.dispose?.();
  }

  private get versions(): Version[] {
    return this.store.doc.history?.versions ?? [];
  }

  private reset(): void {
    this.listings.clear();
    this.chooseSides();
    this.paintTable();
    this.runs.replaceChildren(...versionRuns(this.store.doc));
    const shownHere = this.store.stages.map((stage) => stage.name);
    const names = mergeOrders([shownHere, ...this.versions.map((version) => this.passes(version) ?? [])]);
    const options = [h('option', { value: SOURCE }, 'source')];
    if (this.store.doc.diff) {
      const { a, b } = this.store.doc.diff;
      options.unshift(h('option', { value: REQUESTED }, `${a.label} and ${b.label}`));
    }
    options.push(...names.map((name) => h('option', { value: name }, `IR after ${name}`)));
    const before = this.what.value;
    this.what.replaceChildren(...options);
    if (this.picked && options.some(({ value }) => value === before)) {
      this.what.value = before;
    }
    this.store.run(this.paintText());
  }

  /** Chooses the versions to compare: those that the user picked while the document has them, else those that the document names. */
  private chooseSides(): void {
    const place = (key: string): number => this.versions.findIndex((v) => v.version === key);
    const picked = this.picked?.map(place);
    if (picked?.every((i) => i >= 0)) {
      [this.a, this.b] = picked;
      return;
    }
    this.picked = null;
    const shown = place(this.store.doc.version);
    this.b = shown >= 0 ? shown : this.versions.length - 1;
    this.a = this.b > 0 ? this.b - 1 : Math.min(1, this.versions.length - 1);
    const { a, b } = this.store.doc.diff ?? {};
    if (a?.version && b?.version) {
      const places = [place(a.version), place(b.version)];
      [this.a, this.b] = places.every((i) => i >= 0) ? places : [this.a, this.b];
    }
  }

  /** Notes that the user has chosen what is compared, which another document then keeps. */
  private pick(): void {
    this.picked = [this.a, this.b].map((i) => this.versions[i]?.version ?? '');
  }

  private paintTable(): void {
    const titles = [
      'left',
      'right',
      'version',
      'changes',
      'result',
      'time',
      'rate',
      'registers',
      'shared memory',
      'spills',
      'first run',
    ];
    const head = h('tr', {}, ...titles.map((text) => h('th', { scope: 'col' }, text)));
    const body = h('tbody', {}, ...this.versions.map((version, i) => this.row(version, i)));
    const caption = h(
      'caption',
      {},
      'Versions of this kernel, those of earlier sessions included. Running the same source again adds a measurement.',
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
        title: `Compare version ${version.number} on the ${side === 'a' ? 'left' : 'right'}`,
      });
      input.addEventListener('change', () => {
        this[side] = i;
        this.pick();
        if (this.what.value === REQUESTED) {
          this.what.value = SOURCE;
        }
        this.store.run(this.paintText());
      });
      return h('td', {}, input);
    };
    const own = version.version === this.store.doc.version;
    const here = own ? ' (this card)' : version.earlier ? ' (earlier session)' : '';
    const times = version.measurements > 1 ? `${version.measurements} measurements` : '';
    const cells = [
      version.note || 'first',
      RESULT[String(version.ok)],
      version.time ? timing(version.time) : 'not run',
      version.rate ? rate(version.rate) : '',
      version.registers !== null && version.target ? `${version.registers} (${version.target})` : '–',
      formatAmount(version.shared_bytes, ' B'),
      formatAmount(version.spill_bytes, ' B'),
      version.first.replace('T', ' ').replace(/\+.*$/, ' UTC'),
    ];
    const name = h('th', { scope: 'row', title: times }, `${version.number}${here}`);
    const kind = (text: string): 'td' | 'td.bnb-wrong' => (text.startsWith('✗') ? 'td.bnb-wrong' : 'td');
    return h('tr', {}, pick('a'), pick('b'), name, ...cells.map((text) => h(kind(text), {}, text)));
  }

  private readonly group = uniqueId('versions');

  private async paintText(): Promise<void> {
    const token = ++this.paintToken;
    const what = this.what.value;
    const [a, b] =
      what === REQUESTED
        ? await this.requestedSides()
        : await Promise.all([this.side(this.a, what), this.side(this.b, what)]);
    if (token !== this.paintToken) {
      return;
    }
    this.clearText();
    const without = [this.versions[this.a], this.versions[this.b]].find(
      (version) =>
        what !== SOURCE && what !== REQUESTED && version && this.passes(version)?.includes(what) === false,
    );
    if (without) {
      const text = `The pass ${what} does not apply to version ${without.number}.`;
      this.text.append(h('p.bnb-empty', {}, text));
      return;
    }
    if (!a || !b) {
      const reason = this.store.host.request
        ? 'the kernel has discarded it, or it is of an earlier session'
        : 'the saved document does not contain it, and no kernel is connected';
      this.text.append(
        h(
          'p.bnb-empty',
          {},
          this.versions.length < 2 && what !== REQUESTED
            ? ONE_VERSION
            : `This text is unavailable: ${reason}.`,
        ),
      );
      return;
    }
    const byOp = what === REQUESTED && this.store.doc.diff!.by_op;
    const language =
      what === SOURCE || (what === REQUESTED && this.store.doc.diff!.a.language === 'python')
        ? 'python'
        : 'ir';
    this.diff = comparison(this.text, [a, b], language, this.store, 'history', !byOp);
  }

  private async requestedSides() {
    const { a, b } = this.store.doc.diff!;
    const load = async (side: typeof a) => {
      const listing = await this.store.listing(side.text);
      return listing && { listing, label: side.label, firstLine: side.first_line };
    };
    return Promise.all([load(a), load(b)]);
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

  /** Returns the passes of a version for the selected target, without those that do not apply. undefined: unknown. */
  private passes(version: Version): string[] | undefined {
    const here = version.version === this.store.doc.version;
    const { target } = this.store.current;
    const stages = here ? this.store.stages : version.views?.find((v) => v.target === target)?.stages;
    return stages?.map((stage) => stage.name);
  }

  /** Returns the IR of a version after a pass, for the selected target. It comes from the card, the document or the kernel. */
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
    let listings = this.listings.get(version.version);
    if (!listings) {
      listings = this.fetchListings(version.version);
      this.listings.set(version.version, listings);
    }
    return (await listings).get(`${target}:${name}`) ?? null;
  }

  private async fetchListings(version: string): Promise<Map<string, Listing>> {
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

  /** Shows the Compare view of the two versions. Without a kernel that answers, it says which command opens it. */
  private async compareLevels(): Promise<void> {
    const [one, two] = [this.versions[this.a], this.versions[this.b]];
    if (!one || !two) {
      return;
    }
    const { kernel } = this.store.doc;
    const command = `%blockdiff ${kernel}@${one.number} ${kernel}@${two.number}`;
    const token = ++this.paintToken;
    this.status.textContent = 'Comparing…';
    try {
      if (!this.store.host.request) {
        throw new Error(`Without a live kernel, run the cell and then ${command}.`);
      }
      const asked = { versions: [one.version, two.version] };
      const { document } = (await this.store.host.request('compare', asked)) as { document: unknown };
      if (!readable(document)) {
        throw new Error('The kernel has sent a page that this version cannot show.');
      }
      if (token !== this.paintToken) {
        this.status.textContent = ''; // the user has chosen something else in the meantime
        return;
      }
      this.clearText();
      this.compared = this.mountCompared(document);
      this.status.textContent = `${command} shows the same as a page of its own.`;
    } catch (error) {
      this.status.textContent = (error as Error).message;
    }
  }

  /** Mounts the Compare view with a store of its own, which nothing else would tell the view of or dispose. */
  private mountCompared(document: Document): Mounted {
    const store = new Store(document, this.store.host);
    const view = compareMachineCode(this.text, store);
    store.subscribe((change) => {
      if (change === 'selection' || change === 'display') {
        view.update(change);
        paintSwitches(this.text, store.display);
      }
    });
    return {
      update: (change) => view.update(change),
      dispose: () => {
        view.dispose?.();
        store.dispose();
      },
    };
  }

  private clearText(): void {
    this.diff?.dispose();
    this.compared?.dispose?.();
    this.diff = this.compared = null;
    this.text.replaceChildren();
  }

  /** Opens the first pass after which the IR of the two versions differs. */
  private async findFirstDifference(): Promise<void> {
    const [one, two] = [this.versions[this.a], this.versions[this.b]];
    if (!one || !two) {
      return;
    }
    this.status.textContent = 'Comparing…';
    const [these, those] = [this.passes(one), this.passes(two)];
    const names = these ?? those ?? this.store.stages.map((stage) => stage.name);
    for (const name of names.filter((n) => (those ?? names).includes(n))) {
      const [a, b] = await Promise.all([this.stage(one, name), this.stage(two, name)]);
      if (!a || !b) {
        this.status.textContent = `The IR after ${name} is unavailable for one of the versions.`;
        return;
      }
      if (difference(a, b, true).hunks.length) {
        this.status.textContent = `Versions ${one.number} and ${two.number} first differ after ${name}.`;
        this.what.value = name;
        this.pick();
        return this.paintText();
      }
    }
    this.status.textContent = `Versions ${one.number} and ${two.number} have the same IR after every pass.`;
  }
}

const ONE_VERSION =
  'There is only one version so far. Change the kernel and run its cell again to compare two versions.';
const RESULT: Readonly<Record<string, string>> = { true: '✓ correct', false: '✗ wrong', null: 'not checked' };

/** Merges lists of names into one. Each name follows its predecessor in its own list. */
function mergeOrders(lists: string[][]): string[] {
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

function formatAmount(value: number | null, unit = ''): string {
  return value === null ? '–' : `${value}${unit}`;
}
