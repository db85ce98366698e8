/**
 * The editor of a stage's IR. It sends the text to the kernel, which compiles on from it. The answer is the document of the result, or a
 * problem with the line and column of the text.
 */

import { button, h, uniqueId } from '../dom';
import type { Document, EditProblem } from '../schema';
import type { Store } from '../store';

/** The kernel's answer to an edit. */
interface EditAnswer {
  document?: Document;
  problem?: EditProblem;
}

/** Edits one stage. `closed` is called after Cancel, and after a successful compilation. */
export class StageEditor {
  private readonly field = h('textarea.bnb-edit', {
    spellcheck: 'false',
    autocomplete: 'off',
    wrap: 'off',
    rows: 24,
    id: uniqueId('edit'),
  });
  private readonly problem = h('div.bnb-problem', { role: 'alert' });
  private readonly compile = button('Compile', () => this.store.run(this.send()), {
    title: 'Run the passes after this one on the text, and generate code (Ctrl+Enter)',
  });
  private busy = false;

  constructor(
    place: HTMLElement,
    private readonly store: Store,
    private readonly stage: string,
    text: string,
    private readonly closed: (edited: boolean) => void,
  ) {
    this.field.value = text;
    this.field.setAttribute('aria-describedby', (this.problem.id = uniqueId('problem')));
    this.field.addEventListener('keydown', (event) => {
      event.stopPropagation(); // the keys of the card and of the notebook
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.store.run(this.send());
      }
    });
    place.replaceChildren(
      h('label', { for: this.field.id }, `IR after ${stage}. The passes after it run on this text.`),
      this.field,
      this.problem,
      h(
        'div.bnb-tools',
        {},
        this.compile,
        button('Cancel', () => this.closed(false)),
      ),
    );
    this.field.focus();
    this.field.setSelectionRange(0, 0);
  }

  /** The text as it is now. */
  get text(): string {
    return this.field.value;
  }

  /** Compiling needs a live kernel. The text stays without one. */
  setLive(live: boolean): void {
    this.compile.disabled = !live;
  }

  private async send(): Promise<void> {
    const { request, save } = this.store.host;
    if (this.busy || !request) {
      return;
    }
    this.busy = true;
    this.problem.textContent = 'Compiling…';
    try {
      const content = { view: this.store.view, stage: this.stage, text: this.text };
      const answer = (await request('edit', content)) as EditAnswer;
      if (answer.document) {
        this.closed(true);
        this.store.update(answer.document);
        save?.(answer.document);
      } else if (answer.problem) {
        this.show(answer.problem);
      }
    } catch (error) {
      this.problem.textContent = String((error as Error).message);
    } finally {
      this.busy = false;
    }
  }

  /** Shows a problem under the text with the line and carets, and selects the place. */
  private show(problem: EditProblem): void {
    const lines = this.text.split('\n');
    const number = problem.line ?? 0;
    const line = lines[number - 1];
    this.problem.replaceChildren(h('p', {}, problem.message));
    if (line !== undefined) {
      const column = problem.column ?? 0;
      const end = Math.max(problem.end_column ?? 0, column + 1);
      const carets = ' '.repeat(column) + '^'.repeat(end - column);
      this.problem.append(h('pre', {}, `${line}\n${carets}`));
      const start = lines.slice(0, number - 1).reduce((sum, text) => sum + text.length + 1, 0);
      this.field.focus();
      this.field.setSelectionRange(start + column, start + Math.min(end, line.length));
      this.field.scrollTop = (this.field.scrollHeight / lines.length) * Math.max(0, number - 6);
    }
    if (problem.hint) {
      this.problem.append(h('p.bnb-quiet', {}, `hint: ${problem.hint}`));
    }
  }
}
