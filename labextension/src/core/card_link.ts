/**
 * Links to the state of a card: what the card shows as a LinkTarget, and the way back. A part of a link that the card no longer has leads
 * to the nearest state, and a notice says so.
 */

import { button, h } from './dom';
import type { LinkParts, LinkTarget } from './link_target';
import type { Stage } from './schema';
import type { Selection, Store } from './store';
import type { Tabs } from './tabs';
import type { Mounted } from './views/spec';
import { findStage } from './views/stage_link';

/** What a link needs of a card. */
export interface LinkedCard {
  store: Store;
  bar: Tabs;
  /** Returns the view of a tab that was opened. */
  view(key: string): Mounted | undefined;
  /** Whether the card is in projector mode, and the way into it. */
  projected(): boolean;
  project(): void;
}

/** Makes and follows the links of a card. */
export class CardLink {
  /** The sentences on what a link names and the card does not have. */
  readonly notice = h('div.bnb-link-notice', { hidden: true });
  private readonly said = h('span', { role: 'status' });
  /** The number of links that were opened. A later link ends the search for the op of an earlier one. */
  private opened = 0;

  constructor(private readonly card: LinkedCard) {
    const close = button('Dismiss', () => (this.notice.hidden = true), { title: 'Close this notice' });
    this.notice.append(this.said, close);
  }

  /** Returns what the card shows. */
  now(): LinkTarget {
    const { store, bar } = this.card;
    const { doc, current, pinned } = store;
    return {
      tab: bar.active,
      parts: {
        ...(doc.views.length > 1 && current.target && { target: current.target }),
        ...this.card.view(bar.active)?.link?.now(),
        ...selectionParts(pinned),
        ...(this.card.projected() && { projector: 'on' }),
      },
    };
  }

  /** Shows what a link says. null: the text of the link is none. */
  open(target: LinkTarget | null): void {
    const { store, bar } = this.card;
    const said = new Set<string>();
    this.opened += 1;
    this.notice.hidden = true;
    this.said.textContent = '';
    const missing = (sentence: string): void => {
      if (!said.has(sentence)) {
        said.add(sentence); // a view that follows the link a second time finds the same
        this.say(sentence);
      }
    };
    if (!target) {
      missing('The link does not name a state of a card');
      return;
    }
    if (target.newer) {
      missing('The link comes from a newer version of blocknb, so it may say more than this page shows');
    }
    const { tab, parts } = target;
    if (parts.target !== undefined) {
      const at = store.doc.views.findIndex((view) => view.target === parts.target);
      if (at < 0) {
        missing(`There is no code for ${parts.target}`);
      }
      store.selectView(at);
    }
    if (bar.has(tab)) {
      bar.show(tab);
      this.card.view(tab)?.link?.follow(parts, missing);
    } else {
      missing(`This card has no tab “${tab}”`);
    }
    store.run(this.select(parts, missing));
    if (parts.projector === 'on') {
      this.card.project();
    }
  }

  private async select(parts: LinkParts, missing: (sentence: string) => void): Promise<void> {
    const { opened } = this;
    const { store } = this.card;
    const { first_line: first, text } = store.doc.source;
    const last = first + text.trimEnd().split('\n').length - 1;
    const numbers = (name: string): number[] =>
      (parts[name] ?? '').split('.').flatMap((digits) => (/^\d{1,9}$/.test(digits) ? [Number(digits)] : []));
    const lines = numbers('line').filter((line) => line >= first && line <= last);
    if (parts.line !== undefined && !lines.length) {
      missing(`The source has no line ${parts.line}`);
    }
    if (lines.length) {
      store.pin({ lines, op: null, inner: numbers('helper'), from: 'link' });
    } else if (parts.op !== undefined) {
      const listing = await store.listing(this.stage(parts)?.text);
      const op = Number(parts.op);
      if (this.opened !== opened) {
        return;
      }
      if (op >= 0 && listing?.ops?.includes(op)) {
        store.pin({ lines: [], op, from: 'link' });
      } else {
        missing(`There is no op ${parts.op}`);
      }
    }
  }

  /** Returns the stage that a link shows, otherwise the last one. Only its listing has the op ids that the link means. */
  private stage(parts: LinkParts): Stage | undefined {
    const { stages } = this.card.store;
    const name = parts.pass ?? (parts.middle?.includes('.') ? parts.middle : undefined); // otherwise a level of code
    return name === undefined ? stages[stages.length - 1] : stages[findStage(stages, name, () => {})];
  }

  private say(sentence: string): void {
    this.notice.hidden = false;
    this.said.textContent += `${sentence}. `;
  }
}

/** Writes a selection. Lines find their code after a change of the kernel, which renumbers its ops. */
function selectionParts(pinned: Selection | null): LinkParts {
  if (!pinned?.lines.length) {
    return pinned?.op != null ? { op: String(pinned.op) } : {};
  }
  return {
    line: pinned.lines.join('.'),
    ...(pinned.inner?.length && { helper: pinned.inner.join('.') }),
  };
}
