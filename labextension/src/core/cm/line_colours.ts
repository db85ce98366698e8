/**
 * Colours by source line: a mode in which every line of every listing has the colour of the source line that it comes from, so that the
 * order of the generated code is visible at a glance. A ruler beside each listing shows the same for the whole text, and the selection.
 */

import { type Extension, type Range, StateEffect, StateField } from '@codemirror/state';
import { Decoration, type DecorationSet, EditorView, ViewPlugin, type ViewUpdate } from '@codemirror/view';

import { button } from '../dom';
import type { Listing } from '../schema';
import type { Store } from '../store';
import { linesOf } from './links';
import { Ruler } from './ruler';

/** The number of colours. Neighbouring source lines never share one. */
export const COLOURS = 10;

/** The number of a source line's colour; -1 for a line without a source line. */
export function colourOf(line: number): number {
  return line > 0 ? (line * 3) % COLOURS : -1;
}

const redraw = StateEffect.define<null>();
const modes = new WeakMap<Store, { on: boolean; listeners: Set<() => void> }>();

function mode(store: Store): { on: boolean; listeners: Set<() => void> } {
  const found = modes.get(store) ?? { on: false, listeners: new Set() };
  modes.set(store, found);
  return found;
}

/** The switch of the mode, for the tools of a view. It applies to all listings of the card. */
export function lineColoursSwitch(store: Store): HTMLButtonElement {
  const state = mode(store);
  const toggle = button('Colour by line', () => {
    state.on = !state.on;
    state.listeners.forEach((listener) => listener());
  });
  toggle.title = 'Give every line the colour of the source line that it comes from';
  const paint = (): void => toggle.setAttribute('aria-pressed', String(state.on));
  state.listeners.add(paint);
  paint();
  return toggle;
}

const marks = Array.from({ length: COLOURS }, (_, i) =>
  Decoration.line({ class: `bnb-line-colour bnb-line-colour-${i}` }),
);

/** The colours and the ruler of one listing. `get` returns the listing that the editor shows now. */
export function lineColours(store: Store, get: () => Listing | null): Extension {
  const state = mode(store);
  const decorate = (count: number, at: (line: number) => number): DecorationSet => {
    const listing = get();
    const ranges: Range<Decoration>[] = [];
    for (let i = 0; state.on && listing && i < Math.min(listing.lines.length, count); i++) {
      const colour = colourOf(listing.lines[i]);
      if (colour >= 0) {
        ranges.push(marks[colour].range(at(i + 1)));
      }
    }
    return Decoration.set(ranges);
  };
  const field = StateField.define<DecorationSet>({
    create: () => Decoration.none,
    update(value, transaction) {
      const again = transaction.docChanged || transaction.effects.some((effect) => effect.is(redraw));
      const { doc } = transaction.state;
      return again ? decorate(doc.lines, (line) => doc.line(line).from) : value;
    },
    provide: (own) => EditorView.decorations.from(own),
  });
  const plugin = ViewPlugin.define((view) => {
    // The editor's own `scrollIntoView` would also scroll the notebook.
    const ruler = new Ruler(view, (position) => {
      const { top } = view.lineBlockAt(position);
      view.scrollDOM.scrollTop = top - view.scrollDOM.clientHeight / 2;
    });
    const paint = (): void => {
      const listing = get();
      const selected = listing ? linesOf(listing, store.selection) : { ops: [], lines: [] };
      const colours = state.on && listing ? listing.lines.map(colourOf) : [];
      ruler.paint(view.state.doc.lines, [...selected.ops, ...selected.lines], colours);
    };
    const changed = (): void => {
      view.dispatch({ effects: redraw.of(null) });
      paint();
    };
    state.listeners.add(changed);
    const stop = store.subscribe((change) => change === 'selection' && paint());
    // The view's first update is over before it can take the colours.
    queueMicrotask(() => state.on && state.listeners.has(changed) && changed());
    return {
      update: (update: ViewUpdate) => void (update.docChanged && paint()),
      destroy() {
        state.listeners.delete(changed);
        stop();
        ruler.dispose();
      },
    };
  });
  return [field, plugin];
}
