/** The overview ruler: a narrow strip beside a listing that shows the lines of the whole text at once. A click scrolls there. */

import type { EditorView } from '@codemirror/view';

import { h, svg } from '../dom';

const MOST_MARKS = 2_000;

/** A strip at the right edge of an editor. */
export class Ruler {
  private readonly marks = svg('svg', { preserveAspectRatio: 'none', width: '100%', height: '100%' });
  private readonly element: HTMLElement;
  private lines = 1;

  /** `go` scrolls to a position of the text. */
  constructor(
    private readonly view: EditorView,
    go: (position: number) => void,
  ) {
    // For the keyboard, `n`, `p` and the search do the same.
    this.element = h(
      'div.bnb-ruler',
      { 'aria-hidden': 'true', title: 'All lines of the listing' },
      this.marks,
    );
    this.element.addEventListener('mousedown', (event) => {
      event.preventDefault();
      const box = this.element.getBoundingClientRect();
      const share = box.height ? (event.clientY - box.top) / box.height : 0;
      const line = Math.min(this.lines, Math.max(1, Math.ceil(share * this.lines)));
      go(view.state.doc.line(line).from);
    });
    view.dom.append(this.element);
  }

  /** Shows the selected lines (from 0) and, if there are any, the colour of each line. */
  paint(lines: number, selected: readonly number[], colours: readonly number[]): void {
    this.lines = Math.max(1, lines);
    this.element.hidden = !selected.length && !colours.length;
    this.view.dom.classList.toggle('bnb-with-ruler', !this.element.hidden);
    this.marks.setAttribute('viewBox', `0 0 10 ${this.lines}`);
    const bands = [];
    for (let from = 0; from < colours.length && bands.length < MOST_MARKS;) {
      let to = from + 1;
      while (to < colours.length && colours[to] === colours[from]) {
        to += 1;
      }
      if (colours[from] >= 0) {
        const className = `bnb-line-colour-${colours[from]}`;
        bands.push(svg('rect', { x: 0, y: from, width: 10, height: to - from, class: className }));
      }
      from = to;
    }
    const least = this.lines / 120; // a mark stays visible beside thousands of lines
    const ticks = selected
      .slice(0, MOST_MARKS)
      .map((line) =>
        svg('rect', { x: 0, y: line, width: 10, height: Math.max(1, least), class: 'bnb-ruler-mark' }),
      );
    this.marks.replaceChildren(...bands, ...ticks);
  }

  dispose(): void {
    this.element.remove();
    this.view.dom.classList.remove('bnb-with-ruler');
  }
}
