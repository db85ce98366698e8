/**
 * The Passes view: a list of all passes with their times, op counts and notes, and the IR after the selected pass. It can compare the IR
 * after any two passes. It dims passes that changed nothing; the user can hide them. With a live kernel, the IR after a pass can be edited.
 */

import { comparison, type Comparison } from '../cm/comparison';
import { pane, type Pane } from '../cm/pane';
import { copyButton } from '../copy';
import { breakable, button, h, uniqueId } from '../dom';
import { paneSwitches, split } from '../pane_switches';
import { origins } from '../origins';
import type { Document, Stage } from '../schema';
import type { ShownParts } from '../shown_parts';
import type { Store } from '../store';
import { ChangeList } from './change_sentences';
import { StageEditor } from './edit';
import { notesList } from './notes';
import { OpLife } from './op_life';
import { passFinder } from './pass_finder';
import { effect, noteCount, unchangedReason } from './pass_texts';
import { opHistory } from './provenance';
import type { Mounted, ViewSpec } from './spec';
import { findStage, stageLink, stageText } from './stage_link';

export const passes: ViewSpec = {
  key: 'passes',
  title: 'Passes',
  tooltip: 'The IR after each pass, and the difference between any two',
  empty: (doc) =>
    doc.views.some((v) => v.stages?.length)
      ? null
      : 'The compilation failed, so there are no passes to show.',
  mount: (panel, store, from) => new Passes(panel, store, from),
};

class Passes implements Mounted {
  private chosen = 0;
  /** Index of the stage to compare with. -1: no comparison. */
  private base = -1;
  private hideUnchanged = false;
  private filter = '';

  private readonly list = h('ol.bnb-stages', {
    role: 'listbox',
    tabindex: 0,
    'aria-label': 'Passes in order',
  });
  private readonly about = h('div.bnb-about');
  private readonly provenance = h('span.bnb-details.bnb-one-line.bnb-history-line', {
    'aria-live': 'polite',
  });
  private readonly life = new OpLife(this.store, (stage) => this.choose(stage));
  private readonly changes = new ChangeList(this.store, 'passes');
  private readonly text = h('div.bnb-listing');
  private readonly compare = h('select.bnb-select', {
    'aria-label': 'Compare with',
    title: 'Show the difference to the IR after another pass (key d: the previous pass)',
  });
  private readonly edit = button('Edit', () => this.store.run(this.openEditor()), {
    title: 'Edit the IR after this pass, and compile on from it',
  });
  private readonly discard = button('Discard edits', () => this.store.run(this.discardEdits()), {
    title: 'Show what the compiler makes without edits',
  });
  private readonly editStatus = h('span.bnb-quiet', { role: 'status' });
  private editor: StageEditor | null = null;
  private editorKey = '';
  /** Texts of editors that another pass or target replaced, by target and stage. */
  private readonly drafts = new Map<string, string>();
  private readonly filterField: HTMLInputElement;
  readonly keys = [
    ['j k', 'next or previous pass'],
    ['/', 'filter passes and notes'],
    ['d', 'compare with the previous pass (on or off)'],
  ] as const;
  readonly link = stageLink(
    () => this.stages,
    () => [this.chosen, this.base],
    (chosen, base) => this.showStages(chosen, base),
  );
  /** Why the compilation failed after the listed passes. */
  private readonly failure = h('p.bnb-wrong', { hidden: true });
  private single: Pane | null = null;
  private diff: Comparison | null = null;
  private paintToken = 0;
  /** The chosen stages by name and place, to find them again in another document. */
  private known: readonly string[] = [];
  private readonly stopAsks = this.store.shown.onAsk((parts) => this.chooseByName(parts) && this.paintAll());

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
    from?: Mounted,
  ) {
    const hide = h('input', {
      type: 'checkbox',
      id: uniqueId('hide'),
      title: 'List only the passes that changed the IR',
    });
    hide.addEventListener('change', () => {
      this.hideUnchanged = hide.checked;
      this.paintList();
    });
    const filter = h('input.bnb-filter', {
      type: 'search',
      placeholder: 'filter',
      'aria-label': 'Filter passes and notes',
      title: 'List only the passes whose name, title or notes contain this text (key /)',
    });
    filter.addEventListener('input', () => {
      this.filter = filter.value.toLowerCase();
      this.paintList();
    });
    this.compare.addEventListener('change', () => {
      this.base = Number(this.compare.value);
      this.store.run(this.paintText());
      this.tellStages();
    });
    this.filterField = filter;
    this.listen();
    panel.append(this.layout(h('label', { for: hide.id }, hide, ' hide passes without changes')));
    this.chosen = this.firstStage();
    if (from instanceof Passes) {
      [this.chosen, this.base] = [from.chosen, from.base];
    }
    this.chooseByName(store.shown.wanted);
    this.reset();
  }

  /** Returns the index of the stage to open: the one that the cell requested, or the first pass that changed something. */
  private firstStage(): number {
    const requested = this.stages.findIndex((stage) => this.store.doc.show?.includes(stage.name));
    const changed = this.stages.findIndex((stage, i) => i > 0 && stage.changed);
    return Math.max(0, requested >= 0 ? requested : changed);
  }

  private layout(hide: HTMLElement): HTMLElement {
    const finder = passFinder(
      this.store,
      () => this.stages,
      (at) => this.showStages(at, at - 1),
    );
    const side = h(
      'div.bnb-side',
      {},
      h('div.bnb-tools', {}, this.filterField, hide),
      this.failure,
      this.list,
      finder,
    );
    const tools = h('div.bnb-tools');
    const main = h('div.bnb-main', {}, tools, this.about, this.life.element, this.changes.element, this.text);
    const { element, toggle } = split(side, main, 'passes');
    const copy = copyButton(
      () => this.store.host,
      async () => (await this.store.listing(this.stages[this.chosen]?.text))?.text ?? null,
      'Copy the IR after this pass',
    );
    tools.append(
      toggle,
      h('label', {}, 'compare with ', this.compare),
      copy,
      this.edit,
      this.discard,
      this.editStatus,
      this.provenance,
      paneSwitches(this.store, main, 'wrap', 'unified'),
    );
    return element;
  }

  private listen(): void {
    this.list.addEventListener('click', (event) => {
      const row = (event.target as Element).closest<HTMLElement>('[data-stage]');
      if (row) {
        this.choose(Number(row.dataset.stage));
      }
    });
    this.list.addEventListener('keydown', (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        this.advance(step);
        event.preventDefault();
      }
    });
  }

  update(change: string): void {
    if (change === 'selection') {
      this.single?.highlight();
      this.diff?.highlight();
      this.paintOpHistory();
    } else if (change === 'host') {
      this.paintTools();
      if (!this.single && !this.diff) {
        this.store.run(this.paintText()); // a kernel may have the text that the document omits
      }
    } else {
      this.closeEditor(true);
      this.reset();
    }
  }

  /** Editing needs a live kernel. */
  private paintTools(): void {
    const live = this.store.host.request !== undefined;
    this.edit.hidden = !live || this.editor !== null || !this.stages.length;
    this.discard.hidden = !live || !this.store.doc.views.some((v) => v.stages?.some((s) => s.edited));
    this.editor?.setLive(live);
  }

  private draftKey(stage: string): string {
    return `${this.store.current.target} ${stage}`;
  }

  private async openEditor(): Promise<void> {
    const stage = this.stages[this.chosen];
    const key = this.draftKey(stage.name);
    let text = this.drafts.get(key);
    try {
      if (text === undefined) {
        const content = { view: this.store.view, stage: stage.name };
        text = ((await this.store.host.request!('stage_text', content)) as { text: string }).text;
      }
    } catch (error) {
      this.editStatus.textContent = String((error as Error).message);
      return;
    }
    if (stage !== this.stages[this.chosen]) {
      return; // the user chose another pass in the meantime
    }
    this.editStatus.textContent = '';
    this.paintToken += 1;
    this.single?.dispose();
    this.diff?.dispose();
    this.single = this.diff = null;
    this.editorKey = key;
    this.editor = new StageEditor(this.text, this.store, stage.name, text, (edited) => {
      this.closeEditor(false);
      this.drafts.delete(key);
      this.editStatus.textContent = edited ? `Compiled from the edited IR after ${stage.name}.` : '';
      this.store.run(this.paintText());
    });
    this.paintTools();
  }

  /** Closes the editor; `keep` keeps its text for the next time. */
  private closeEditor(keep: boolean): void {
    if (this.editor && keep) {
      this.drafts.set(this.editorKey, this.editor.text);
    }
    if (this.editor) {
      this.editor = null;
      this.text.replaceChildren();
      this.paintTools();
    }
  }

  private async discardEdits(): Promise<void> {
    try {
      const answer = (await this.store.host.request!('edit', { stage: null })) as { document: Document };
      this.editStatus.textContent = '';
      this.store.update(answer.document);
      this.store.host.save?.(answer.document);
    } catch (error) {
      this.editStatus.textContent = String((error as Error).message);
    }
  }

  key(event: KeyboardEvent): boolean {
    const step = { j: 1, k: -1 }[event.key];
    if (step) {
      this.advance(step);
    } else if (event.key === '/') {
      this.filterField.focus();
    } else if (event.key === 'd' && this.chosen > 0) {
      this.base = this.base === this.chosen - 1 ? -1 : this.chosen - 1;
      this.paintStage();
      this.tellStages();
    } else {
      return false;
    }
    return true;
  }

  dispose(): void {
    this.stopAsks();
    this.paintToken += 1; // a text that comes later is not shown
    this.single?.dispose();
    this.diff?.dispose();
  }

  private get stages(): Stage[] {
    return this.store.stages;
  }

  /** Chooses the stages that a widget names. Returns whether it named one. */
  private chooseByName({ stage, compared_with: base }: Partial<ShownParts>): boolean {
    const index = (name: string | null | undefined): number => this.stages.findIndex((s) => s.name === name);
    if (index(stage) >= 0) {
      this.chosen = index(stage);
    }
    if (base !== undefined) {
      this.base = index(base);
    }
    return index(stage) >= 0 || base !== undefined;
  }

  /** Shows another document or target, at the same stages if it has them. */
  private reset(): void {
    const [chosen, base] = this.known;
    if (chosen) {
      this.chosen = findStage(this.stages, chosen, () => {});
    }
    if (base) {
      let gone = false;
      const found = findStage(this.stages, base, () => (gone = true));
      this.base = gone ? -1 : found;
    }
    this.chosen = Math.max(0, Math.min(this.chosen, this.stages.length - 1));
    this.base = this.base < this.stages.length ? this.base : -1;
    this.paintAll();
  }

  private paintAll(): void {
    this.paintList();
    this.paintStage();
  }

  private choose(stage: number): void {
    const previous = this.base === this.chosen - 1 && this.base >= 0;
    this.showStages(stage, previous ? stage - 1 : this.base); // keeps the comparison with the previous pass
  }

  private showStages(chosen: number, base: number): void {
    [this.chosen, this.base] = [chosen, base];
    this.paintAll();
    this.tellStages();
  }

  private tellStages(): void {
    const [stage, base] = [this.stages[this.chosen], this.stages[this.base]];
    this.store.shown.tell({ stage: stage?.name ?? null, compared_with: base?.name ?? null });
  }

  private shown(stage: Stage, i: number): boolean {
    if (this.hideUnchanged && i > 0 && !stage.changed && i !== this.chosen) {
      return false;
    }
    const words = [stage.name, stage.title, ...stage.notes.map((n) => n.text)];
    return !this.filter || words.some((w) => w.toLowerCase().includes(this.filter));
  }

  advance(by: number): void {
    let next = this.chosen + by;
    while (this.stages[next] && !this.shown(this.stages[next], next)) {
      next += by;
    }
    if (this.stages[next]) {
      this.choose(next);
    }
  }

  private paintList(): void {
    const { error } = this.store.current;
    this.failure.hidden = !error || !this.stages.length;
    this.failure.textContent = this.failure.hidden ? '' : `✗ ${error}`;
    const rows = this.stages.flatMap((stage, i) => (this.shown(stage, i) ? [this.row(stage, i)] : []));
    this.list.replaceChildren(...rows);
    const chosen = rows.find((row) => row.dataset.stage === String(this.chosen));
    this.list.setAttribute('aria-activedescendant', chosen?.id ?? '');
    chosen?.scrollIntoView?.({ block: 'nearest' });
  }

  private row(stage: Stage, i: number): HTMLElement {
    const row = h('li.bnb-stage', {
      role: 'option',
      id: uniqueId('stage'),
      'data-stage': i,
      'data-name': stage.name,
      'aria-selected': String(i === this.chosen),
      class: i > 0 && !stage.changed ? 'bnb-stage bnb-unchanged' : 'bnb-stage',
    });
    const missed = stage.notes.filter((n) => n.kind !== 'info').length;
    row.append(
      h('span.bnb-stage-name', {}, ...breakable(stage.name)),
      h('span.bnb-stage-effect', {}, effect(stage, i)),
      h('span.bnb-stage-time', {}, `${stage.milliseconds.toFixed(2)} ms`),
      h('span.bnb-stage-notes', {}, noteCount(stage.notes, missed)),
    );
    return row;
  }

  private paintStage(): void {
    this.closeEditor(true);
    this.paintTools();
    const stage = this.stages[this.chosen];
    const options = [h('option', { value: -1 }, 'nothing')];
    this.stages.forEach((other, i) => {
      if (i !== this.chosen) {
        const label = `${other.name}${i === this.chosen - 1 ? ' (previous pass)' : ''}`;
        options.push(h('option', { value: i, selected: i === this.base }, label));
      }
    });
    this.compare.replaceChildren(...options);
    this.about.replaceChildren();
    if (stage) {
      this.about.append(
        h('p', {}, h('strong', {}, stage.title.replace(/\.$/, '')), `: ${effect(stage, this.chosen)}`),
      );
      this.about.append(notesList(stage.notes, this.store, unchangedReason(stage, this.chosen)));
    }
    this.paintOpHistory();
    this.store.run(this.paintText());
  }

  private paintOpHistory(): void {
    const op = this.store.selection?.op;
    this.provenance.textContent = this.provenance.title = op == null ? '' : opHistory(this.stages, op);
    this.life.show();
  }

  private async paintText(): Promise<void> {
    this.known = [this.chosen, this.base].map((at) => stageText(this.stages, at));
    this.closeEditor(true);
    this.store.run(this.changes.show(this.base, this.chosen));
    const token = ++this.paintToken;
    const stage = this.stages[this.chosen];
    const other = this.stages[this.base];
    const [listing, before] = await Promise.all([
      this.store.listing(stage?.text),
      other ? this.store.listing(other.text) : null,
    ]);
    if (token !== this.paintToken) {
      return; // the selection changed in the meantime
    }
    this.diff?.dispose();
    this.diff = null;
    if (!listing || (other && !before)) {
      this.single?.dispose();
      this.single = null;
      this.text.replaceChildren(h('p.bnb-empty', {}, this.missing(listing ? other : stage)));
    } else if (other && before) {
      this.single?.dispose();
      this.single = null;
      this.text.replaceChildren();
      const sides = [
        { listing: before, label: `IR after ${other.name}` },
        {
          listing,
          label: `IR after ${stage.name}`,
          hints: { origins: origins(this.stages, this.base, this.chosen) },
        },
      ] as const;
      const [a, b] = this.base < this.chosen ? sides : [sides[1], sides[0]];
      this.diff = comparison(this.text, [a, b], 'ir', this.store, 'passes');
    } else {
      if (!this.single) {
        this.text.replaceChildren();
        this.single = pane(this.text, 'IR', 'passes', this.store);
      }
      this.single.show(listing, 'ir');
    }
  }

  private missing(stage: Stage | undefined): string {
    if (!stage) {
      return this.store.current.error ?? 'The kernel was not compiled for this target.';
    }
    const left = this.store.doc.left_out.find((l) => l.call.includes(`'${stage.name}'`));
    return left
      ? `This text is not stored, because the card is at its limit of 600 kB. Use ${left.call} to get it.`
      : 'This text is not stored, because the card is at its limit of 600 kB.';
  }
}
