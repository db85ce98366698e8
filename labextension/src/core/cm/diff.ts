/**
 * A side-by-side diff of two listings. The hunks come from `hunks.ts`, because the editor's own diff degrades on large edits. The view
 * folds unchanged lines, marks the changed words of a line, and puts a sign before ops that moved.
 */

import { Change, goToNextChunk, goToPreviousChunk, MergeView } from '@codemirror/merge';
import { EditorState, type Extension, type Range, type Text } from '@codemirror/state';
import { Decoration, EditorView, keymap, lineNumbers } from '@codemirror/view';

import { h } from '../dom';
import { commonSubsequence, type DiffHints, type Difference, difference, type Hunk } from '../hunks';
import type { Listing } from '../schema';
import type { Store } from '../store';
import { align, alignment } from './alignment';
import { explanations } from './explain';
import { layoutTable } from './ir_docs';
import { keepStyles } from './keep_styles';
import { language, type Language } from './languages';
import { foldLayouts, withRelated } from './related_ops';
import { highlightSelection, links } from './links';
import { opSigns } from './op_signs';
import { readOnly } from './pane';
import { wrapping } from './wrap';

/** One side of a diff. */
export interface Side {
  listing: Listing;
  label: string;
  firstLine?: number;
  /** Of the right side: what is known about the two listings besides their texts. */
  hints?: DiffHints;
}

/** A mounted diff. */
export interface DiffPane {
  readonly difference: Difference;
  readonly view: MergeView;
  /** Highlights the lines of the store's selection. */
  highlight(): void;
  dispose(): void;
}

/** Shows `a` on the left and `b` on the right. `byText`: the op ids of the two are unrelated, as in two versions of a kernel. */
export function diffPane(
  parent: HTMLElement,
  left: Side,
  right: Side,
  name: Language,
  store: Store,
  key: string,
  byText = false,
): DiffPane {
  const tables = foldLayouts(left, right);
  const { a, b } = tables;
  const found = difference(a.listing, b.listing, byText, b.hints);
  const marked = changedWords(found.hunks, a.listing.text, b.listing.text, name);
  let view: MergeView | null = null;
  let frame = 0;
  // In a frame of its own: an editor takes no changes while it measures.
  const measure = (): void => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (view) {
        align(view.a, view.b, found.hunks);
      }
    });
  };
  const editor = (side: Side, where: 'a' | 'b'): { doc: string; extensions: Extension } => ({
    doc: side.listing.text,
    extensions: [
      lineNumbers({ formatNumber: (n) => String(n - 1 + (side.firstLine ?? 1)) }),
      readOnly(side.label),
      language(name),
      links(store, `${key}-${where}`, () => side.listing),
      wrapping(store),
      layoutTable.of(tables[where === 'a' ? 'left' : 'right']),
      explanations(
        () => name,
        () => {},
      ),
      EditorView.decorations.of(marks(side.listing, marked[where], found)),
      alignment(measure),
      keymap.of([
        { key: 'n', run: goToNextChunk },
        { key: 'p', run: goToPreviousChunk },
      ]),
    ],
  });
  const element = parent.appendChild(h('div.bnb-diff'));
  element.append(h('p.bnb-quiet.bnb-summary', {}, summary(found, byText)));
  const labels = h('div.bnb-sides', {}, h('span', {}, a.label), h('span', {}, b.label));
  element.append(labels, ...tables.elements);
  keepStyles();
  const merge = new MergeView({
    a: editor(a, 'a'),
    b: editor(b, 'b'),
    parent: element,
    highlightChanges: false,
    collapseUnchanged: { margin: 3, minSize: 6 },
    diffConfig: { override: (x, y) => changes(found.hunks, x, y) },
  });
  const highlight = (): void => {
    const selection = withRelated(store.selection, found, b.hints?.origins);
    highlightSelection(merge.a, a.listing, selection, `${key}-a`);
    highlightSelection(merge.b, b.listing, selection, `${key}-b`);
  };
  view = merge;
  measure();
  highlight();
  return {
    difference: found,
    view: merge,
    highlight,
    dispose() {
      view = null;
      cancelAnimationFrame(frame);
      merge.destroy();
      element.remove();
    },
  };
}

/** Returns a sentence that summarizes the difference. */
export function summary(found: Difference, byText: boolean): string {
  if (!found.hunks.length) {
    return byText ? 'No difference, except for value names.' : 'No difference.';
  }
  if (byText) {
    const [less, more] = found.hunks.reduce(
      ([x, y], hunk) => [x + hunk.toA - hunk.fromA, y + hunk.toB - hunk.fromB],
      [0, 0],
    );
    return `Changed lines: ${less} on the left, ${more} on the right.`;
  }
  const parts = [
    [found.changed.size, 'changed'],
    [found.added.size - found.copies.size, 'added'],
    [found.removed.size, 'removed'],
    [found.moved.size, 'moved (↕)'],
    [found.copies.size, 'copied (∥)'],
  ] as const;
  const counted = parts.filter(([count]) => count).map(([count, what]) => `${count} ${what}`);
  return counted.length ? `Ops: ${counted.join(', ')}.` : 'The ops are identical.';
}

/** Converts hunks of lines to changes of characters. */
export function changes(hunks: readonly Hunk[], a: string, b: string): Change[] {
  const one = EditorState.create({ doc: a }).doc;
  const two = EditorState.create({ doc: b }).doc;
  return hunks.map(
    (hunk) =>
      new Change(start(one, hunk.fromA), start(one, hunk.toA), start(two, hunk.fromB), start(two, hunk.toB)),
  );
}

function start(doc: Text, line: number): number {
  return line < doc.lines ? doc.line(line + 1).from : doc.length;
}

/** A range of characters in a line. Lines and characters count from 0. */
export interface Word {
  line: number;
  from: number;
  to: number;
}

const TOKEN = /[%#@]?[\w.]+|\s+|[^\w\s]/g;

/** Registers in machine code and values in LLVM text, and the text without their number: a comparison ignores it, and `.reuse` in SASS. */
const REGISTER: Partial<Record<Language, readonly [RegExp, string]>> = {
  sass: [/^(U?[RP])(?:\d+|(Z))(?:\.reuse)?/, '$1$2'],
  ptx: [/^%([a-z]+)\d+$/, '%$1'],
  llvm: [/^%[\w.]+$/, '%'],
};

/**
 * Returns the words that differ in hunks with equal numbers of lines. In other hunks whole lines differ. Code of the
 * language `name` with another register is equal.
 */
export function changedWords(
  hunks: readonly Hunk[],
  a: string,
  b: string,
  name?: Language,
): { a: Word[]; b: Word[] } {
  const register = name && REGISTER[name];
  const unnamed = (token: string): string => (register ? token.replace(...register) : token);
  const one = a.split('\n');
  const two = b.split('\n');
  const found = { a: [] as Word[], b: [] as Word[] };
  for (const { fromA, toA, fromB, toB } of hunks) {
    for (let i = 0; toA - fromA === toB - fromB && i < toA - fromA; i++) {
      const left = one[fromA + i].match(TOKEN) ?? [];
      const right = two[fromB + i].match(TOKEN) ?? [];
      const [x, y] = [left, right].map((tokens) => tokens.map(unnamed));
      const same = commonSubsequence(x, 0, x.length, y, 0, y.length);
      found.a.push(...changedRanges(left, new Set(same.map(([at]) => at)), fromA + i));
      found.b.push(...changedRanges(right, new Set(same.map(([, at]) => at)), fromB + i));
    }
  }
  return found;
}

/** Returns the ranges of the tokens that are not in `kept`. */
function changedRanges(tokens: readonly string[], kept: ReadonlySet<number>, line: number): Word[] {
  const found: Word[] = [];
  let at = 0;
  tokens.forEach((token, i) => {
    const last = found[found.length - 1];
    if (!kept.has(i)) {
      if (last?.to === at) {
        last.to = at + token.length;
      } else {
        found.push({ line, from: at, to: at + token.length });
      }
    }
    at += token.length;
  });
  return found;
}

const word = Decoration.mark({ class: 'bnb-word' });

function marks(listing: Listing, found: readonly Word[], difference: Difference) {
  const doc = EditorState.create({ doc: listing.text }).doc;
  const ranges: Range<Decoration>[] = [];
  for (const { line, from, to } of found) {
    const begin = doc.line(line + 1).from;
    ranges.push(word.range(begin + from, begin + to));
  }
  for (const [line, sign] of opSigns(listing, difference)) {
    if (line < doc.lines) {
      ranges.push(sign.range(doc.line(line + 1).from));
    }
  }
  return Decoration.set(ranges, true);
}

export type { EditorView };
