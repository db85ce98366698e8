/**
 * The strip below the tabs of a card: the knobs beside any view, which updates in place, and for learners the button that leads from the
 * views that teach to the stages of the compiler.
 */

import { button, h, renderBackquotes } from './dom';
import { knobControls, type KnobControls } from './knob_controls';
import { disposeKnobs, knobsOf } from './knob_session';
import type { Document } from './schema';
import type { Store } from './store';
import type { Tabs } from './tabs';
import type { ViewSpec } from './views/spec';

/** The views with which the card for learners begins. */
const FIRST: readonly string[] = ['step', 'launch', 'footprint'];

/** Returns the views in the order of their tabs: for learners the views that teach come first. */
export function orderedViews(doc: Document, views: readonly ViewSpec[]): readonly ViewSpec[] {
  if (!doc.teaching?.learn) {
    return views;
  }
  const first = FIRST.flatMap((key) => views.filter((view) => view.key === key));
  return [...first, ...views.filter((view) => !FIRST.includes(view.key))];
}

/** A mounted strip. */
export interface Strip {
  /** Shows all tabs if this one is not among the first. */
  reveal(key: string): void;
  /** Follows the host and the document. */
  update(): void;
  dispose(): void;
}

/** Creates the strip of a card below its tabs. */
export function strip(store: Store, bar: Tabs): Strip {
  const element = h('div.bnb-strip');
  const list = bar.element.querySelector<HTMLElement>('[role=tablist]')!;
  list.parentElement!.after(element);
  const box = h('div.bnb-strip-knobs', { hidden: true });
  const verdict = h('p.bnb-quiet', { role: 'status' });
  const toggle = button('Knobs', () => open(box.hidden), {
    'aria-expanded': 'false',
    title: 'Change the constants and options beside this view',
  });
  const showAll = (): void => {
    delete list.dataset.folded;
    bar.show('code');
    update();
  };
  const more = button('IR and machine code', showAll, { title: 'Show the views of the compiler, too' });
  let controls: KnobControls | null = null;
  let stop = (): void => {};

  function open(shown: boolean): void {
    if (shown && !controls) {
      const session = knobsOf(store);
      controls = knobControls(store, session, false);
      box.append(controls.element, verdict);
      stop = session.onChange(paint);
    }
    box.hidden = !shown;
    toggle.setAttribute('aria-expanded', String(shown));
    paint();
  }

  /** Says what happens, or the verdict on the change. */
  function paint(): void {
    const { modified } = store.doc;
    const { status } = knobsOf(store);
    const text = [modified ? `${modified.settings}: ${modified.text}.` : '', status]
      .filter(Boolean)
      .join(' ');
    verdict.replaceChildren(...renderBackquotes(text));
  }

  function update(): void {
    toggle.hidden = !store.doc.knobs || !store.host.request;
    more.hidden = list.dataset.folded === undefined;
    if (toggle.hidden && !box.hidden) {
      open(false);
    }
    element.hidden = toggle.hidden && more.hidden;
    if (controls) {
      paint();
    }
  }

  if (store.doc.teaching?.learn) {
    list.dataset.folded = 'true';
  }
  element.append(h('div.bnb-strip-buttons', {}, toggle, more), box);
  update();
  return {
    reveal(key) {
      if (list.dataset.folded !== undefined && !FIRST.includes(key)) {
        delete list.dataset.folded;
        update();
      }
    },
    update,
    dispose() {
      stop();
      controls?.dispose();
      disposeKnobs(store);
    },
  };
}
