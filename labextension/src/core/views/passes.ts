/**
 * The pipeline: every pass with its time, what it did to the number of ops, and its notes; the IR after any of them, and any two side
 * by side. A pass that changed nothing is dimmed, can be hidden, and says why.
 */

import { diffPane, type DiffPane } from '../cm/diff';
import { pane, type Pane } from '../cm/pane';
import { button, h, uniqueId } from '../dom';
import type { Note, Stage } from '../schema';
import type { Store } from '../store';
import { notesList } from './notes';
import { story } from './provenance';
import type { Mounted, ViewSpec } from './spec';

export const passes: ViewSpec = {
  key: 'passes',
  title: 'Passes',
  empty: (doc) =>
    doc.views.some((v) => v.stages?.length)
      ? null
      : 'The kernel could not be compiled: there are no passes to show.',
  mount: (panel, store) => new Passes(panel, store),
};

class Passes implements Mounted {
  private chosen = 0;
  /** What the chosen stage is compared with; -1: nothing, its text alone. */
  private against = -1;
  private hideIdle = false;
  private filter = '';

  private readonly list = h('ol.bnb-stages', {
    role: 'listbox',
    tabindex: 0,
    'aria-label': 'Passes, in order',
  });
  private readonly about = h('div.bnb-about');
  private readonly provenance = h('p.bnb-story', { 'aria-live': 'polite' });
  private readonly text = h('div.bnb-listing');
  private readonly compare = h('select.bnb-select', { 'aria-label': 'Compare with' });
  private readonly search = h('input.bnb-filter', {
    type: 'search',
    placeholder: 'text in the IR',
    'aria-label': 'Find the first pass by a text of its IR',
  });
  private readonly searched = h('select.bnb-select', { 'aria-label': 'What the pass does to that text' });
  private readonly answer = h('span.bnb-quiet', { role: 'status' });
  private readonly filterField: HTMLInputElement;
  readonly keys = [
    ['j k', 'the next and the previous pass'],
    ['/', 'filter passes and notes'],
    ['d', 'compare with the pass before, and back'],
  ] as const;
  private single: Pane | null = null;
  private pair: DiffPane | null = null;
  private painted = 0;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    const idle = h('input', { type: 'checkbox', id: uniqueId('idle') });
    idle.addEventListener('change', () => {
      this.hideIdle = idle.checked;
      this.paintList();
    });
    const filter = h('input.bnb-filter', {
      type: 'search',
      placeholder: 'filter',
      'aria-label': 'Filter passes and notes',
    });
    filter.addEventListener('input', () => {
      this.filter = filter.value.toLowerCase();
      this.paintList();
    });
    this.compare.addEventListener('change', () => {
      this.against = Number(this.compare.value);
      void this.paintText();
    });
    this.filterField = filter;
    this.searched.append(
      h('option', { value: 'makes' }, 'makes'),
      h('option', { value: 'removes' }, 'removes'),
    );
    this.search.addEventListener('keydown', (event) => event.key === 'Enter' && void this.find());
    const copy = button('Copy', () => void this.copy(), { title: 'Copy the IR after this pass' });
    panel.append(
      h(
        'div.bnb-split',
        {},
        h(
          'div.bnb-side',
          {},
          h(
            'div.bnb-tools',
            {},
            filter,
            h('label', { for: idle.id }, idle, ' hide passes that changed nothing'),
          ),
          this.list,
          h(
            'div.bnb-tools.bnb-finder',
            {},
            h('label', {}, 'first pass that ', this.searched),
            this.search,
            button('Find', () => void this.find()),
            this.answer,
          ),
        ),
        h(
          'div.bnb-main',
          {},
          h('div.bnb-tools', {}, h('label', {}, 'compare with ', this.compare), copy),
          this.about,
          this.provenance,
          this.text,
        ),
      ),
    );
    this.list.addEventListener('click', (event) => {
      const row = (event.target as Element).closest<HTMLElement>('[data-stage]');
      if (row) {
        this.choose(Number(row.dataset.stage));
      }
    });
    this.list.addEventListener('keydown', (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        this.step(step);
        event.preventDefault();
      }
    });
    const asked = store.stages.findIndex((stage) => store.doc.show?.includes(stage.name));
    this.chosen = Math.max(0, asked);
    this.reset();
  }

  update(change: string): void {
    if (change === 'selection') {
      this.single?.light();
      this.pair?.light();
      this.paintStory();
    } else if (change !== 'host') {
      this.reset();
    }
  }

  key(event: KeyboardEvent): boolean {
    const step = { j: 1, k: -1 }[event.key];
    if (step) {
      this.step(step);
    } else if (event.key === '/') {
      this.filterField.focus();
    } else if (event.key === 'd' && this.chosen > 0) {
      this.against = this.against === this.chosen - 1 ? -1 : this.chosen - 1;
      this.paintStage();
    } else {
      return false;
    }
    return true;
  }

  /** Opens the first pass whose IR has a text that the IR before had not, or the other way round, beside the pass before. */
  private async find(): Promise<void> {
    const wanted = this.search.value;
    const makes = this.searched.value === 'makes';
    if (!wanted) {
      return;
    }
    const texts = await Promise.all(this.stages.map((stage) => this.store.listing(stage.text)));
    const has = texts.map((listing) => listing?.text.includes(wanted) ?? false);
    const at = has.findIndex((found, i) => (makes ? found && !has[i - 1] : !found && i > 0 && has[i - 1]));
    if (at < 0) {
      this.answer.textContent = `No pass ${makes ? 'makes' : 'removes'} “${wanted}”.`;
      return;
    }
    this.answer.textContent = `${this.stages[at].name} ${at === 0 ? 'has it from the start' : makes ? 'makes it' : 'removes it'}.`;
    this.chosen = at;
    this.against = at - 1;
    this.paintList();
    this.paintStage();
  }

  dispose(): void {
    this.single?.dispose();
    this.pair?.dispose();
  }

  private get stages(): Stage[] {
    return this.store.stages;
  }

  private reset(): void {
    this.chosen = Math.min(this.chosen, Math.max(0, this.stages.length - 1));
    if (this.against >= this.stages.length) {
      this.against = -1;
    }
    this.paintList();
    this.paintStage();
  }

  private choose(stage: number): void {
    if (this.against === this.chosen - 1 && this.against >= 0) {
      this.against = stage - 1; // "with the pass before" stays that
    }
    this.chosen = stage;
    this.paintList();
    this.paintStage();
  }

  private shown(stage: Stage, i: number): boolean {
    if (this.hideIdle && i > 0 && !stage.changed && i !== this.chosen) {
      return false;
    }
    const words = [stage.name, stage.title, ...stage.notes.map((n) => n.text)];
    return !this.filter || words.some((w) => w.toLowerCase().includes(this.filter));
  }

  private step(by: number): void {
    let next = this.chosen + by;
    while (this.stages[next] && !this.shown(this.stages[next], next)) {
      next += by;
    }
    if (this.stages[next]) {
      this.choose(next);
    }
  }

  private paintList(): void {
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
      'aria-selected': String(i === this.chosen),
      class: i > 0 && !stage.changed ? 'bnb-stage bnb-idle' : 'bnb-stage',
    });
    const missed = stage.notes.filter((n) => n.kind !== 'info').length;
    row.append(
      h('span.bnb-stage-name', {}, stage.name),
      h('span.bnb-stage-effect', {}, effect(stage, i)),
      h('span.bnb-stage-time', {}, `${stage.milliseconds.toFixed(2)} ms`),
      h('span.bnb-stage-notes', {}, count(stage.notes, missed)),
    );
    return row;
  }

  private paintStage(): void {
    const stage = this.stages[this.chosen];
    const options = [h('option', { value: -1 }, 'nothing')];
    this.stages.forEach((other, i) => {
      if (i !== this.chosen) {
        const label = `${other.name}${i === this.chosen - 1 ? ' (the pass before)' : ''}`;
        options.push(h('option', { value: i, selected: i === this.against }, label));
      }
    });
    this.compare.replaceChildren(...options);
    this.about.replaceChildren();
    if (stage) {
      this.about.append(
        h('p', {}, h('strong', {}, stage.title.replace(/\.$/, '')), `: ${effect(stage, this.chosen)}`),
      );
      this.about.append(notesList(stage.notes, this.store, why(stage, this.chosen)));
    }
    this.paintStory();
    void this.paintText();
  }

  private paintStory(): void {
    const op = this.store.selection?.op;
    this.provenance.textContent = op === null || op === undefined ? '' : story(this.stages, op);
  }

  private async paintText(): Promise<void> {
    const turn = ++this.painted;
    const stage = this.stages[this.chosen];
    const other = this.stages[this.against];
    const [listing, before] = await Promise.all([
      this.store.listing(stage?.text),
      other ? this.store.listing(other.text) : null,
    ]);
    if (turn !== this.painted) {
      return; // something else was chosen meanwhile
    }
    this.pair?.dispose();
    this.pair = null;
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
        { listing, label: `IR after ${stage.name}` },
      ] as const;
      const [a, b] = this.against < this.chosen ? sides : [sides[1], sides[0]];
      this.pair = diffPane(this.text, a, b, 'ir', this.store, 'passes');
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
      return this.store.current.error ?? 'Nothing was compiled for this target.';
    }
    const left = this.store.doc.left_out.find((l) => l.call.includes(`'${stage.name}'`));
    return left
      ? `This text was left out to keep the notebook small; ${left.call} gives it.`
      : 'This text was left out to keep the notebook small.';
  }

  private async copy(): Promise<void> {
    const listing = await this.store.listing(this.stages[this.chosen]?.text);
    if (listing) {
      this.store.host.copy?.(listing.text);
    }
  }
}

/** What a pass did, in few words. */
export function effect(stage: Stage, index: number): string {
  if (index === 0) {
    return `${stage.ops} ops`;
  }
  if (stage.skipped) {
    return 'switched off';
  }
  if (!stage.changed) {
    return 'no change';
  }
  return stage.delta === 0
    ? `${stage.ops} ops, as before`
    : `${stage.ops} ops (${stage.delta > 0 ? '+' : '−'}${Math.abs(stage.delta)})`;
}

/** Why a pass without notes left everything as it was. */
function why(stage: Stage, index: number): string {
  if (index === 0 || stage.changed) {
    return '';
  }
  return stage.skipped ? 'It was switched off.' : 'It found nothing to do in this kernel.';
}

function count(notes: readonly Note[], missed: number): string {
  if (!notes.length) {
    return '';
  }
  return `${notes.length} note${notes.length > 1 ? 's' : ''}${missed ? `, ${missed} missed` : ''}`;
}
