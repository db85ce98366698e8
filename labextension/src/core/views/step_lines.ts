/** The rows of the Step view: a source line with its breakpoint and values, and the lines of the helpers that the program is in. */

import { h } from '../dom';
import { helperLine, innerOf } from '../helpers';
import type { HelperSource } from '../schema';
import type { LineStep } from '../step_player';
import type { StepFacts } from '../teaching';

/** Creates the cells of a line: the breakpoint, the source, and the values of each run. `place` identifies the line. */
export function lineCells(place: number, line: number, code: string, runs: number): HTMLElement[] {
  const mark = h(
    'button.bnb-step-line',
    {
      type: 'button',
      'data-break': place,
      'aria-pressed': 'false',
      'aria-label': `Breakpoint in line ${line}`,
    },
    String(line),
  );
  const source = h('code.bnb-step-source', { 'data-source': place }, code || ' ');
  const values = Array.from({ length: runs }, (_, run) =>
    h('div.bnb-step-values', { 'data-run': run, 'data-at': place }),
  );
  return [mark, source, ...values];
}

/** Returns where a step is, as text. */
export function placeText(facts: Pick<StepFacts, 'helpers'>, { line, calls, occurrence }: LineStep): string {
  const found = helperLine(facts, line);
  const place = found
    ? `line ${found.line} of ${found.helper.name}, called in line ${calls[0]}`
    : `line ${line}`;
  return `${place}${occurrence ? `, execution ${occurrence + 1}` : ''}`;
}

/** The helpers that the current step is in. Their lines stand below the line of the call. */
export class HelperRows {
  private readonly blocks = new Map<HelperSource, HTMLElement[]>();
  private shown: string | null = null;

  constructor(
    private readonly lines: HTMLElement,
    private readonly facts: { helpers?: Record<string, HelperSource> },
    runs: number,
  ) {
    for (const [key, helper] of Object.entries(facts.helpers ?? {})) {
      const head = h('div.bnb-step-helper', {}, 'helper ', h('code', {}, helper.name));
      const rows = helper.text
        .replace(/\n$/, '')
        .split('\n')
        .flatMap((code, i) => {
          const line = helper.first_line + i;
          return lineCells(innerOf(key, line), line, code, runs);
        });
      this.blocks.set(helper, [head, ...rows]);
    }
  }

  /** All cells, also of helpers that are not shown. */
  get cells(): HTMLElement[] {
    return [...this.blocks.values()].flat();
  }

  /** Shows the helpers of a step: `chain` is its line after the lines of the calls that lead to it. */
  show(chain: readonly number[]): void {
    const wanted = chain.map((place, i) => (i ? helperLine(this.facts, place)?.helper : undefined));
    const key = wanted.map((helper, i) => `${helper ? chain[i - 1] : ''}:${helper?.first_line}`).join();
    if (key === this.shown) {
      return;
    }
    this.shown = key;
    const focused = this.lines.ownerDocument.activeElement;
    this.cells.forEach((cell) => cell.remove());
    const placed = new Set<HelperSource>(); // a helper that calls itself stands once
    wanted.forEach((helper, i) => {
      if (helper && !placed.has(helper)) {
        placed.add(helper);
        const call = this.lines.querySelectorAll(`[data-at="${chain[i - 1]}"]`);
        call[call.length - 1]?.after(...this.blocks.get(helper)!);
      }
    });
    if (focused instanceof HTMLElement && this.cells.includes(focused)) {
      const next = focused.isConnected
        ? focused
        : this.lines.querySelector<HTMLElement>(`[data-break="${chain[0]}"]`);
      next?.focus({ preventScroll: true });
    }
  }
}
