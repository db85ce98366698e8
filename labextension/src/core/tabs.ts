/** A tab list after the WAI-ARIA pattern: the arrow keys move, it is one tab stop, and a panel is created when first opened. */

import { h, uniqueId } from './dom';

/** One tab. */
export interface Tab {
  key: string;
  title: string;
  /** Why the panel is empty, or null. An empty panel shows this text. */
  empty: string | null;
  /** Fills the panel. */
  open(panel: HTMLElement): void;
}

/** A mounted tab list. */
export interface Tabs {
  element: HTMLElement;
  show(key: string): void;
  readonly active: string;
}

/** Creates a tab list. */
export function tabs(label: string, list: readonly Tab[], onShow: (key: string) => void = () => {}): Tabs {
  const bar = h('div.bnb-tabs', { role: 'tablist', 'aria-label': label });
  const element = h('div.bnb-tabbed', {}, bar);
  const opened = new Set<string>();
  let active = '';
  const entries = list.map((tab) => {
    const panel = h('div.bnb-panel', { role: 'tabpanel', id: uniqueId('panel'), tabindex: 0, hidden: true });
    const head = h(
      'button.bnb-tab',
      {
        type: 'button',
        role: 'tab',
        id: uniqueId('tab'),
        'aria-controls': panel.id,
        'data-key': tab.key,
        class: tab.empty ? 'bnb-tab bnb-tab-empty' : 'bnb-tab',
        title: tab.empty,
      },
      tab.title,
    );
    panel.setAttribute('aria-labelledby', head.id);
    head.addEventListener('click', () => show(tab.key));
    bar.append(head);
    element.append(panel);
    return { tab, head, panel };
  });

  function show(key: string): void {
    active = key;
    for (const { tab, head, panel } of entries) {
      const on = tab.key === key;
      head.setAttribute('aria-selected', String(on));
      head.tabIndex = on ? 0 : -1;
      panel.hidden = !on;
      if (on && !opened.has(key)) {
        opened.add(key);
        if (tab.empty) {
          panel.append(h('p.bnb-empty', {}, tab.empty));
        } else {
          tab.open(panel);
        }
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
      const entry = entries[(next + entries.length) % entries.length];
      show(entry.tab.key);
      entry.head.focus();
      event.preventDefault();
    }
  });
  return {
    element,
    show,
    get active() {
      return active;
    },
  };
}
