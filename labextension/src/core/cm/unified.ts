/**
 * A comparison of two listings in one column: removed lines stand above the lines that replace them. The column is one listing of its
 * own, whose lines keep their source lines and ops, so removed lines are linked, too.
 */

import { RangeSet, type Range, StateEffect, StateField } from '@codemirror/state';
import {
  Decoration,
  type DecorationSet,
  EditorView,
  gutter,
  GutterMarker,
  keymap,
  WidgetType,
} from '@codemirror/view';

import { h } from '../dom';
import type { Difference, Hunk } from '../hunks';
import type { Listing } from '../schema';
import type { Store } from '../store';
import { changedWords, type Side, type Word } from './diff';
import { explanations } from './explain';
import { layoutTable } from './ir_docs';
import { keepStyles } from './keep_styles';
import { language, type Language } from './languages';
import { highlightSelection, links } from './links';
import { opSigns } from './op_signs';
import { readOnly } from './pane';
import { withRelated } from './related_ops';
import { wrapping } from './wrap';

const MARGIN = 3; // unchanged lines above and below a difference
const FEWEST = 6; // unchanged lines that are folded

/** A line of the column: its indices in the two listings. -1: the listing has no such line. */
export interface UnifiedLine {
  a: number;
  b: number;
}

/** Returns the lines of the column. In a hunk, the lines of `a` come first. `length` counts the lines of `a`. */
export function unifiedLines(hunks: readonly Hunk[], length: number): UnifiedLine[] {
  const found: UnifiedLine[] = [];
  let a = 0;
  let b = 0;
  const same = (end: number): void => {
    for (; a < end; a++, b++) {
      found.push({ a, b });
    }
  };
  for (const hunk of hunks) {
    same(hunk.fromA);
    for (a = hunk.fromA; a < hunk.toA; a++) {
      found.push({ a, b: -1 });
    }
    for (b = hunk.fromB; b < hunk.toB; b++) {
      found.push({ a: -1, b });
    }
  }
  same(length);
  return found;
}

/** A mounted comparison in one column. */
export interface UnifiedPane {
  readonly editor: EditorView;
  highlight(): void;
}

/** Shows the difference between `a` and `b` in one column. `tables`: the layouts that the listings do not show. */
export function unifiedPane(
  parent: HTMLElement,
  [a, b]: readonly [Side, Side],
  found: Difference,
  name: Language,
  store: Store,
  key: string,
  tables: readonly string[] = [],
): UnifiedPane {
  const lines = unifiedLines(found.hunks, a.listing.text.split('\n').length);
  const listing = joined(lines, a.listing, b.listing);
  const words = changedWords(found.hunks, a.listing.text, b.listing.text, name);
  keepStyles();
  const editor = new EditorView({
    parent,
    doc: listing.text,
    extensions: [
      numbers(lines, 'a', a.firstLine ?? 1),
      numbers(lines, 'b', b.firstLine ?? 1),
      readOnly(`${a.label} and ${b.label}`),
      language(name),
      links(store, key, () => listing),
      wrapping(store),
      layoutTable.of(tables),
      explanations(
        () => name,
        () => {},
      ),
      EditorView.decorations.of((view) => marks(view, lines, words)),
      EditorView.decorations.of((view) =>
        signs(view, lines, opSigns(a.listing, found), opSigns(b.listing, found)),
      ),
      folds(lines),
      keymap.of([
        { key: 'n', run: (view) => step(view, lines, 1) },
        { key: 'p', run: (view) => step(view, lines, -1) },
      ]),
    ],
  });
  const highlight = (): void =>
    highlightSelection(editor, listing, withRelated(store.selection, found, b.hints?.origins), key);
  highlight();
  return { editor, highlight };
}

function joined(lines: readonly UnifiedLine[], a: Listing, b: Listing): Listing {
  const [one, two] = [a.text.split('\n'), b.text.split('\n')];
  const from = ({ a: i, b: j }: UnifiedLine): [Listing, number] => (j >= 0 ? [b, j] : [a, i]);
  return {
    text: lines.map((line) => (line.b >= 0 ? two[line.b] : one[line.a]) ?? '').join('\n'),
    lines: lines.map((line) => from(line)).map(([side, i]) => side.lines[i] ?? 0),
    ops: lines.map((line) => from(line)).map(([side, i]) => side.ops?.[i] ?? -1),
    ...((a.inner ?? b.inner) && {
      inner: lines.map((line) => from(line)).map(([side, i]) => side.inner?.[i] ?? 0),
    }),
  };
}

const looks = {
  removed: Decoration.line({ class: 'bnb-removed' }),
  added: Decoration.line({ class: 'bnb-added' }),
  word: Decoration.mark({ class: 'bnb-word' }),
};

function marks(
  { state }: EditorView,
  lines: readonly UnifiedLine[],
  words: { a: readonly Word[]; b: readonly Word[] },
): DecorationSet {
  const ranges: Range<Decoration>[] = [];
  const place = { a: new Map<number, number>(), b: new Map<number, number>() };
  lines.forEach((line, i) => {
    if (line.a < 0 || line.b < 0) {
      const from = state.doc.line(i + 1).from;
      ranges.push((line.b < 0 ? looks.removed : looks.added).range(from));
      place[line.b < 0 ? 'a' : 'b'].set(line.b < 0 ? line.a : line.b, from);
    }
  });
  for (const side of ['a', 'b'] as const) {
    for (const word of words[side]) {
      const begin = place[side].get(word.line);
      if (begin !== undefined) {
        ranges.push(looks.word.range(begin + word.from, begin + word.to));
      }
    }
  }
  return Decoration.set(ranges, true);
}

/** The signs of both sides. A line that both have shows those of the right side, or else those of the left one. */
function signs(
  { state }: EditorView,
  lines: readonly UnifiedLine[],
  a: readonly [number, Decoration][],
  b: readonly [number, Decoration][],
): DecorationSet {
  const [left, right] = [new Map(a), new Map(b)];
  const ranges = lines.flatMap((line, i) => {
    const sign = right.get(line.b) ?? left.get(line.a);
    return sign ? [sign.range(state.doc.line(i + 1).from)] : [];
  });
  return Decoration.set(ranges, true);
}

class LineNumber extends GutterMarker {
  constructor(readonly text: string) {
    super();
  }

  eq(other: LineNumber): boolean {
    return other.text === this.text;
  }

  toDOM(): Node {
    return document.createTextNode(this.text);
  }
}

/** The line numbers of one listing. The numbers of `b` have a sign for added and removed lines. */
function numbers(lines: readonly UnifiedLine[], side: 'a' | 'b', first: number) {
  const text = (line: UnifiedLine): string => {
    const sign = side === 'a' ? '' : line.a < 0 ? ' +' : line.b < 0 ? ' −' : '  ';
    return (line[side] < 0 ? '' : String(line[side] + first)) + sign;
  };
  return gutter({
    class: 'cm-lineNumbers',
    markers: ({ state }) =>
      RangeSet.of(
        lines.map((line, i) => new LineNumber(text(line)).range(state.doc.line(i + 1).from)),
        true,
      ),
  });
}

const unfold = StateEffect.define<number>();

class Folded extends WidgetType {
  constructor(
    readonly count: number,
    readonly from: number,
  ) {
    super();
  }

  eq(other: Folded): boolean {
    return other.count === this.count && other.from === this.from;
  }

  toDOM(view: EditorView): HTMLElement {
    const text = `${this.count} unchanged lines`;
    const element = h('div.cm-collapsedLines', { title: 'Show these lines' }, text);
    element.addEventListener('click', () => view.dispatch({ effects: unfold.of(this.from) }));
    return element;
  }

  ignoreEvent(event: Event): boolean {
    return event instanceof MouseEvent;
  }
}

/** Folds unchanged lines. A click on a fold opens it. */
function folds(lines: readonly UnifiedLine[]) {
  return StateField.define<DecorationSet>({
    create(state) {
      const ranges: Range<Decoration>[] = [];
      for (const [from, to] of unchangedRuns(lines)) {
        const begin = state.doc.line(from + 1).from;
        const widget = new Folded(to - from, begin);
        ranges.push(Decoration.replace({ widget, block: true }).range(begin, state.doc.line(to).to));
      }
      return Decoration.set(ranges);
    },
    update(value, transaction) {
      const opened = transaction.effects.filter((e) => e.is(unfold)).map((e) => e.value);
      return opened.length ? value.update({ filter: (from) => !opened.includes(from) }) : value;
    },
    provide: (field) => EditorView.decorations.from(field),
  });
}

/** Returns the ranges of lines to fold, as first and last plus one. */
export function unchangedRuns(lines: readonly UnifiedLine[]): [number, number][] {
  const found: [number, number][] = [];
  for (let from = 0; from < lines.length; from++) {
    let to = from;
    while (to < lines.length && lines[to].a >= 0 && lines[to].b >= 0) {
      to++;
    }
    const begin = from === 0 ? 0 : from + MARGIN;
    const end = to === lines.length ? to : to - MARGIN;
    if (end - begin >= FEWEST) {
      found.push([begin, end]);
    }
    from = Math.max(from, to);
  }
  return found;
}

/** Moves the cursor to the next or previous difference. */
function step(view: EditorView, lines: readonly UnifiedLine[], by: 1 | -1): boolean {
  const { doc, selection } = view.state;
  const differs = (i: number): boolean => i >= 0 && i < lines.length && (lines[i].a < 0 || lines[i].b < 0);
  for (let i = doc.lineAt(selection.main.head).number - 1 + by; i >= 0 && i < lines.length; i += by) {
    if (differs(i) && !differs(i - 1)) {
      const at = doc.line(i + 1).from;
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: 'center' }) });
      return true;
    }
  }
  return true;
}
