/** The targets of a card as columns: their notes, or their PTX, LLVM or SASS, side by side. It exists if the card has several GPUs. */

import { pane, type Pane } from '../cm/pane';
import { h, renderBackquotes } from '../dom';
import type { CodeKey, View } from '../schema';
import type { Store } from '../store';

/** What a column shows. */
type Content = 'notes' | Exclude<CodeKey, 'assembly'>;

const CONTENTS: readonly [Content, string][] = [
  ['notes', 'notes'],
  ['ptx', 'PTX'],
  ['sass', 'SASS'],
  ['llvm', 'LLVM'],
];

/** The columns below the table of resources. */
export class TargetColumns {
  readonly element = h('section.bnb-targets-beside', { 'aria-label': 'Targets side by side' });
  private content: Content = 'notes';
  private panes: { view: View; pane: Pane }[] = [];
  private readonly choice = h('select.bnb-select', {
    'aria-label': 'Compare the targets by',
    title: 'What the columns show',
  });
  private readonly columns = h('div.bnb-target-columns');
  private token = 0;

  constructor(private readonly store: Store) {
    this.choice.append(...CONTENTS.map(([key, label]) => h('option', { value: key }, label)));
    this.choice.addEventListener('change', () => {
      this.content = this.choice.value as Content;
      this.paint();
    });
    this.element.append(h('label.bnb-heading', {}, 'Side by side: ', this.choice), this.columns);
    this.paint();
  }

  /** Highlights the selected lines in all columns. */
  highlight(): void {
    this.panes.forEach(({ pane }) => pane.highlight());
  }

  dispose(): void {
    this.panes.forEach(({ pane }) => pane.dispose());
    this.panes = [];
  }

  /** Shows the targets of the document. */
  paint(): void {
    const gpus = this.store.doc.views.filter((view) => view.target?.startsWith('sm_'));
    this.element.hidden = gpus.length < 2;
    this.dispose();
    this.columns.replaceChildren();
    if (gpus.length > 1) {
      this.columns.append(
        ...gpus.map((view) =>
          h(
            'div.bnb-target-column',
            { 'data-target': view.label },
            h('h4.bnb-heading', {}, view.label),
            ...this.column(view),
          ),
        ),
      );
      this.store.run(this.fill());
    }
  }

  private column(view: View): HTMLElement[] {
    if (this.content === 'notes') {
      const notes = (view.stages ?? []).flatMap((stage) =>
        stage.notes.map((note) => ({ note, stage: stage.name })),
      );
      const items = notes.map(({ note, stage }) =>
        h(
          'li',
          { 'data-kind': note.kind },
          h('span.bnb-quiet', {}, `${stage}${note.line ? `, line ${note.line}` : ''}: `),
          ...renderBackquotes(note.text),
        ),
      );
      return [items.length ? h('ul.bnb-notes', {}, ...items) : h('p.bnb-quiet', {}, 'no notes')];
    }
    const box = h('div.bnb-listing');
    const made = pane(
      box,
      `${this.content.toUpperCase()} for ${view.label}`,
      `beside-${view.label}`,
      this.store,
    );
    this.panes.push({ view, pane: made });
    return [box];
  }

  private async fill(): Promise<void> {
    const token = ++this.token;
    const { content } = this;
    if (content === 'notes') {
      return;
    }
    for (const { view, pane: made } of this.panes) {
      const listing = await this.store.listing(view.code?.[content]);
      if (token !== this.token) {
        return;
      }
      const missing = { text: 'The card does not contain this text.', lines: [0] };
      made.show(listing ?? missing, listing ? content : 'text');
    }
  }
}
