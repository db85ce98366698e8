/**
 * The comparison of the IR after two stages of one target, without the list of passes. It is a view for widgets, which choose the stages
 * by their traits. Without a stage it shows the last one that changed something. Without a stage to compare with it takes the one before.
 */

import { diffPane, type DiffPane } from './cm/diff';
import { h } from './dom';
import type { Stage } from './schema';
import type { ShownParts } from './shown_parts';
import type { Store } from './store';
import { passes } from './views/passes';
import type { Mounted, ViewSpec } from './views/spec';

export const stageDiff: ViewSpec = {
  key: 'diff',
  title: 'Diff',
  tooltip: 'The IR after one pass beside the IR after another',
  empty: passes.empty,
  mount: (panel, store) => new StageDiff(panel, store),
};

const PREVIOUS = '';

class StageDiff implements Mounted {
  /** The names of the stages; null: the default. */
  private stage: string | null = null;
  private base: string | null = null;
  private readonly left = h('select.bnb-select', { 'aria-label': 'Compare with' });
  private readonly right = h('select.bnb-select', { 'aria-label': 'Stage' });
  private readonly box = h('div.bnb-listing');
  private diff: DiffPane | null = null;
  private paintToken = 0;
  private readonly stopAsks = this.store.shown.onAsk((parts) => this.choose(parts));

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    panel.append(
      h(
        'div.bnb-tools',
        {},
        h('label', {}, 'IR after ', this.right),
        h('label', {}, 'compared with ', this.left),
      ),
      this.box,
    );
    const user = (parts: Partial<ShownParts>): void => {
      this.choose(parts);
      store.shown.tell(parts);
    };
    this.left.addEventListener('change', () => user({ compared_with: this.left.value || null }));
    this.right.addEventListener('change', () => user({ stage: this.right.value }));
    this.choose(store.shown.wanted);
  }

  update(change: string): void {
    if (change === 'selection') {
      this.diff?.highlight();
    } else if (change !== 'host') {
      this.store.run(this.paint());
    }
  }

  dispose(): void {
    this.stopAsks();
    this.paintToken += 1; // a text that comes later is not shown
    this.diff?.dispose();
  }

  private choose({ stage, compared_with: base }: Partial<ShownParts>): void {
    this.stage = stage === undefined ? this.stage : stage;
    this.base = base === undefined ? this.base : base;
    this.store.run(this.paint());
  }

  /** The indices of the two stages. */
  private get pair(): [number, number] {
    const { stages } = this.store;
    const index = (name: string | null): number => stages.findIndex((s) => s.name === name);
    const changed = stages.map((s, i) => i > 0 && s.changed).lastIndexOf(true);
    const right = index(this.stage) >= 0 ? index(this.stage) : Math.max(changed, 0);
    const left = index(this.base) >= 0 ? index(this.base) : Math.max(right - 1, 0);
    return [left, right];
  }

  private paintChoices(left: number, right: number): void {
    const option = (stage: Stage, i: number, chosen: number): HTMLElement =>
      h('option', { value: stage.name, selected: i === chosen }, stage.name);
    const { stages } = this.store;
    const named = stages.some((s) => s.name === this.base);
    this.right.replaceChildren(...stages.map((s, i) => option(s, i, right)));
    this.left.replaceChildren(
      h('option', { value: PREVIOUS, selected: !named }, 'the stage before'),
      ...stages.map((s, i) => option(s, i, named ? left : -1)),
    );
  }

  private async paint(): Promise<void> {
    const token = ++this.paintToken;
    const { stages } = this.store;
    const [left, right] = this.pair;
    this.paintChoices(left, right);
    const [a, b] = await Promise.all([left, right].map((i) => this.store.listing(stages[i]?.text)));
    if (token !== this.paintToken) {
      return; // the stages changed in the meantime
    }
    this.diff?.dispose();
    this.diff = null;
    this.box.replaceChildren();
    if (a && b) {
      const side = (listing: typeof a, i: number) => ({ listing, label: `IR after ${stages[i].name}` });
      this.diff = diffPane(this.box, side(a, left), side(b, right), 'ir', this.store, 'diff');
    } else {
      this.box.append(h('p.bnb-empty', {}, this.missing));
    }
  }

  private get missing(): string {
    return (
      this.store.current.error ??
      (this.store.stages.length
        ? 'These texts are not stored, to keep the notebook small. Run the cell again to see them.'
        : 'The kernel was not compiled for this target.')
    );
  }
}
