/**
 * A comparison of two listings: side by side, or in one column. It follows the setting of the store, and has one column where two would
 * be too narrow to read.
 */

import { h } from '../dom';
import { difference } from '../hunks';
import type { Store } from '../store';
import { diffPane, type Side, summary } from './diff';
import type { Language } from './languages';
import { foldLayouts } from './related_ops';
import { unifiedPane } from './unified';

/** The least width of two columns in CSS pixels. */
const NARROW = 440;

/** A mounted comparison. */
export interface Comparison {
  /** Highlights the lines of the store's selection. */
  highlight(): void;
  dispose(): void;
}

/** Shows `a` and `b`. `byText`: the op ids of the two are unrelated, as in two versions of a kernel. */
export function comparison(
  parent: HTMLElement,
  sides: readonly [Side, Side],
  name: Language,
  store: Store,
  key: string,
  byText = false,
): Comparison {
  const inOneColumn = (): boolean =>
    store.display.unified || (parent.clientWidth > 0 && parent.clientWidth < NARROW);
  let unified = inOneColumn();
  const build = (): Comparison => {
    if (!unified) {
      return diffPane(parent, sides[0], sides[1], name, store, key, byText);
    }
    const tables = foldLayouts(...sides);
    const { a, b } = tables;
    const found = difference(a.listing, b.listing, byText, b.hints);
    const element = parent.appendChild(h('div.bnb-diff'));
    element.append(
      h('p.bnb-quiet.bnb-summary', {}, summary(found, byText)),
      h('div.bnb-sides.bnb-one-side', {}, h('span', {}, `− ${a.label}`), h('span', {}, `+ ${b.label}`)),
      ...tables.elements,
    );
    const layouts = [...tables.right, ...tables.left];
    const { editor, highlight } = unifiedPane(element, [a, b], found, name, store, key, layouts);
    return {
      highlight,
      dispose() {
        editor.destroy();
        element.remove();
      },
    };
  };
  let shown = build();
  const follow = (): void => {
    if (unified !== inOneColumn()) {
      unified = inOneColumn();
      shown.dispose();
      shown = build();
    }
  };
  const stop = store.subscribe((change) => change === 'display' && follow());
  const resized = typeof ResizeObserver === 'undefined' ? null : new ResizeObserver(follow);
  resized?.observe(parent);
  return {
    highlight: () => shown.highlight(),
    dispose() {
      stop();
      resized?.disconnect();
      shown.dispose();
    },
  };
}
