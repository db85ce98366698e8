/** A tab list after the WAI-ARIA pattern: the arrow keys move, it is one tab stop, and a panel is created when first opened. */

import { h, uniqueId } from './dom';

/** One tab. */
export interface Tab {
  key: string;
  title: string;
  /** What the panel shows. */
  tooltip: string;
  /** Why the panel is empty, or null. An empty panel shows this text. */
  empty: string | null;
  /** Creates the controls that fill an empty panel. null: there are none. */
  measure(): HTMLElement | null;
  /** Fills the panel. */
  open(panel: HTMLElement): void;
}

/** A mounted tab list. `tools` is a place for buttons beside the tabs. */
export interface Tabs {
  element: HTMLElement;
  tools: HTMLElement;
  show(key: string): void;
  /** Whether there is such a tab. */
  has(key: string): boolean;
  /** Opens the next or the previous tab that has content. */
  step(by: 1 | -1): void;
  /** Tells which panels are empty now, in the order of the tabs: why, or null. */
  refresh(empty: readonly (string | null)[]): void;
  readonly active: string;
}

interface Entry {
  tab: Tab;
  head: HTMLElement;
  panel: HTMLElement;
  /** Whether the user has seen the panel, and whether `tab.open` has filled it. */
  seen: boolean;
  filled: boolean;
}

/** Creates a tab list. */
export function tabs(label: string, list: readonly Tab[], onShow: (key: string) => void = () => {}): Tabs {
  const bar = h('div.bnb-tabs', { role: 'tablist', 'aria-label': label });
  const tools = h('div.bnb-tab-tools'); // before the tabs, so that Tab goes from a tab to its panel
  const element = h('div.bnb-tabbed', {}, h('div.bnb-tab-bar', {}, tools, bar));
  let active = '';
  const entries = list.map((tab) => {
    const made = entry(tab);
    made.head.addEventListener('click', () => show(tab.key));
    bar.append(made.head);
    element.append(made.panel);
    return made;
  });

  function show(key: string): void {
    active = key;
    for (const one of entries) {
      const on = one.tab.key === key;
      one.head.setAttribute('aria-selected', String(on));
      one.head.tabIndex = on ? 0 : -1;
      one.panel.hidden = !on;
      if (on) {
        one.seen = true;
        fill(one);
      }
    }
    onShow(key);
  }

  bar.addEventListener('keydown', (event) => {
    const at = entries.findIndex((e) => e.head === document.activeElement);
    const moves: Record<string, number> = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      Home: 0,
      End: entries.length - 1,
    };
    const next = moves[event.key];
    if (at >= 0 && next !== undefined) {
      const found = entries[(next + entries.length) % entries.length];
      show(found.tab.key);
      found.head.focus();
      event.preventDefault();
    }
  });
  return {
    element,
    tools,
    show,
    has: (key) => entries.some(({ tab }) => tab.key === key),
    step(by) {
      const full = entries.filter(({ tab }) => tab.empty === null || tab.key === active);
      const at = full.findIndex(({ tab }) => tab.key === active);
      show(full[(at + by + full.length) % full.length].tab.key);
    },
    refresh(empty) {
      entries.forEach((one, i) => {
        one.tab.empty = empty[i];
        paintHead(one);
        const busy = one.panel.querySelector('[aria-busy=true]') !== null;
        const used = busy || one.panel.contains(document.activeElement);
        if (one.seen && (empty[i] === null || !used)) {
          fill(one);
        }
      });
    },
    get active() {
      return active;
    },
  };
}

function entry(tab: Tab): Entry {
  const panel = h('div.bnb-panel', { role: 'tabpanel', id: uniqueId('panel'), tabindex: 0, hidden: true });
  const head = h(
    'button.bnb-tab',
    { type: 'button', role: 'tab', id: uniqueId('tab'), 'aria-controls': panel.id, 'data-key': tab.key },
    tab.title,
  );
  panel.setAttribute('aria-labelledby', head.id);
  const made = { tab, head, panel, seen: false, filled: false };
  paintHead(made);
  return made;
}

function paintHead({ tab, head }: Entry): void {
  head.classList.toggle('bnb-tab-empty', tab.empty !== null);
  head.title = tab.empty ?? tab.tooltip;
}

/** Fills a panel once its view has content. Before, it shows why there is none, and how to measure it. */
function fill(one: Entry): void {
  const { tab, panel } = one;
  if (one.filled) {
    return;
  }
  if (tab.empty === null) {
    one.filled = true;
    panel.replaceChildren();
    tab.open(panel);
  } else {
    panel.replaceChildren(h('p.bnb-empty', {}, tab.empty), ...[tab.measure()].filter((m) => m !== null));
  }
}
