/**
 * The life of the selected op as a strip: what each pass did to it, to the ops that it was made from, and to those that were made from
 * it, from the front end to the lines of machine code. A click goes there.
 */

import { h } from '../dom';
import type { CodeKey, Stage } from '../schema';
import type { Store } from '../store';

/** What a pass did: a sign, a word, and the ops that it left. */
export interface LifeEvent {
  stage: number;
  sign: string;
  text: string;
  /** The op to select in the IR after the pass; null if none is left. */
  op: number | null;
}

/** Returns the ops that an op comes from, and itself, by following `origin` backwards. */
function ancestors(stages: readonly Stage[], op: number): Set<number> {
  const found = new Set([op]);
  for (let i = stages.length - 1; i >= 0; i--) {
    for (const id of [...found]) {
      (stages[i].origin[String(id)] ?? []).forEach((was) => found.add(was));
    }
  }
  return found;
}

/** Returns the events of an op's life, in order: of its ancestors until it is made, and of its successors after it is removed. */
export function lifeOf(stages: readonly Stage[], op: number): LifeEvent[] {
  const before = ancestors(stages, op);
  let followed = new Set([op]);
  const events: LifeEvent[] = [];
  const born = stages.findIndex((stage) => stage.made.includes(op));
  stages.forEach((stage, i) => {
    const own = i < born ? before : followed;
    const made = stage.made.filter((id) => own.has(id) || (i === born && id === op));
    const heirs = Object.entries(stage.origin)
      .filter(([, from]) => from.some((id) => own.has(id)))
      .map(([id]) => Number(id));
    const gone = stage.deleted.filter((id) => own.has(id));
    const [first = null] = i >= born && born >= 0 ? [...followed] : made;
    if (made.length) {
      const from = stage.origin[String(made[0])];
      const text = from?.length ? `made from op ${from.join(', ')}` : `made by ${stage.name}`;
      events.push({ stage: i, sign: '●', text, op: made[0] });
    } else if (gone.length) {
      const text = heirs.length
        ? `replaced by op ${heirs.slice(0, 4).join(', ')}${heirs.length > 4 ? ', …' : ''}`
        : 'removed';
      events.push({ stage: i, sign: heirs.length ? '⇒' : '✕', text, op: heirs[0] ?? null });
    } else if (heirs.length && i > born) {
      events.push({ stage: i, sign: '∥', text: `copied to op ${heirs.slice(0, 4).join(', ')}`, op: first });
    } else if (stage.retyped.some((id) => own.has(id))) {
      events.push({ stage: i, sign: '◇', text: 'retyped', op: stage.retyped.find((id) => own.has(id))! });
    } else if (stage.moved.some((id) => own.has(id))) {
      events.push({ stage: i, sign: '↕', text: 'moved', op: stage.moved.find((id) => own.has(id))! });
    }
    if (i >= born) {
      followed = new Set([
        ...[...followed].filter((id) => !gone.includes(id)),
        ...(gone.length ? heirs : []),
      ]);
    }
  });
  return events;
}

const CODE: readonly [CodeKey, string][] = [
  ['ptx', 'PTX'],
  ['sass', 'SASS'],
  ['assembly', 'assembly'],
];

/** The strip. `choose` shows a pass. Its height is constant, so that the listing below stays under the pointer. */
export class OpLife {
  readonly element = h('ol.bnb-life', { 'aria-label': 'Life of the selected op' });
  private token = 0;

  constructor(
    private readonly store: Store,
    private readonly choose: (stage: number) => void,
  ) {}

  /** Shows the life of the selected op, or nothing. */
  show(): void {
    const selection = this.store.selection;
    const op = selection?.op ?? null;
    const token = ++this.token;
    if (op === null) {
      this.element.replaceChildren(h('li.bnb-quiet', {}, 'Point at an op to see its life.'));
      return;
    }
    const events = lifeOf(this.store.stages, op);
    this.element.replaceChildren(...events.map((event) => h('li', {}, this.cell(event))));
    const line = selection?.lines[0] ?? 0;
    if (line > 0) {
      this.store.run(this.addCode(line, token));
    }
  }

  private cell(event: LifeEvent): HTMLElement {
    const { name } = this.store.stages[event.stage];
    const cell = h(
      'button.bnb-life-cell',
      { type: 'button', title: `${name}: ${event.text}` },
      h('span.bnb-life-sign', { 'aria-hidden': 'true' }, event.sign),
      ` ${name}: ${event.text}`,
    );
    cell.addEventListener('click', () => {
      const { selection } = this.store;
      this.choose(event.stage);
      this.store.pin({ lines: selection?.lines ?? [], op: event.op, from: 'life' });
    });
    return cell;
  }

  /** Adds how many lines of machine code come from the op's source line. */
  private async addCode(line: number, token: number): Promise<void> {
    const { code } = this.store.current;
    for (const [key, title] of CODE) {
      const listing = code?.[key] ? await this.store.listing(code[key]) : null;
      const count = listing?.lines.filter((one) => one === line).length ?? 0;
      if (token !== this.token) {
        return;
      }
      if (listing) {
        const text = `${title}: ${count} line${count === 1 ? '' : 's'} of line ${line}`;
        const cell = h(
          'button.bnb-life-cell',
          { type: 'button', title: `Show the ${title} of line ${line}` },
          text,
        );
        cell.addEventListener('click', () => {
          this.store.open('code', key);
          this.store.pin({ lines: [line], op: null, from: 'life' });
        });
        this.element.append(h('li', {}, cell));
      }
    }
  }
}
