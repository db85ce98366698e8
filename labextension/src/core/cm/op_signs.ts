/** Signs before the lines of ops that moved (↕), and of ops that have copies (∥), in comparisons. */

import { Decoration, WidgetType } from '@codemirror/view';

import { h } from '../dom';
import type { Difference } from '../hunks';
import type { Listing } from '../schema';

/** A sign before the line of an op. */
class OpSign extends WidgetType {
  constructor(
    private readonly sign: string,
    private readonly title: string,
  ) {
    super();
  }

  toDOM(): HTMLElement {
    return h('span.bnb-moved', { title: this.title, 'aria-label': this.title }, `${this.sign} `);
  }

  eq(other: OpSign): boolean {
    return other.sign === this.sign && other.title === this.title;
  }
}

const sign = (text: string, title: string): Decoration =>
  Decoration.widget({ widget: new OpSign(text, title), side: -1 });
const moved = sign('↕', 'This op moved.');

/** Returns the signs of a listing: pairs of a line (from 0) and its decoration, in order. */
export function opSigns(listing: Listing, difference: Difference): [number, Decoration][] {
  const copied = new Map<number, number>();
  difference.copies.forEach((origin) => copied.set(origin, (copied.get(origin) ?? 0) + 1));
  return (listing.ops ?? []).flatMap((op, i): [number, Decoration][] => {
    const found: [number, Decoration][] = difference.moved.has(op) ? [[i, moved]] : [];
    const count = copied.get(op);
    const origin = difference.copies.get(op);
    if (origin !== undefined) {
      found.push([i, sign('∥', `This op is a copy of op ${origin}.`)]);
    } else if (count) {
      const copies = count > 1 ? 'copies' : 'copy';
      found.push([i, sign('∥', `This op has ${count} more ${copies} on the right.`)]);
    }
    return found;
  });
}
