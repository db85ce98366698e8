/**
 * Knobs: sliders for tile sizes, warps and stages, a switch for each optional pass. Every turn compiles the kernel anew, runs it on
 * scratch copies where it can, and shows what changed against the card as it was first shown.
 */

import { button, h, uniqueId } from '../dom';
import type { Asked, Document, Knob, Turn } from '../schema';
import type { Store } from '../store';
import { rate, time } from '../plot/numbers';
import type { Mounted, ViewSpec } from './spec';

export const knobs: ViewSpec = {
  key: 'knobs',
  title: 'Knobs',
  empty: (doc) =>
    doc.knobs
      ? null
      : 'This page was exported: knobs are turned in its notebook, and turning needs a live kernel.',
  mount: (panel, store) => new Knobs(panel, store),
};

const OPTIONS = ['num_warps', 'num_stages'] as const;
type Option = (typeof OPTIONS)[number];

/** Milliseconds without a further turn before the kernel is asked. */
const PAUSE = 60;

class Knobs implements Mounted {
  private readonly controls = h('div.bnb-knobs');
  private readonly status = h('p.bnb-quiet', { role: 'status' });
  private readonly table = h('div.bnb-results');
  private readonly first: Document;
  /** What shows another value on the slider of an option. */
  private readonly moves = new Map<Option, (value: number | boolean) => void>();
  private turn: Turn;
  private timer = 0;
  /** A turn is under way, and whether a knob has moved since: one turn at a time, and of those that wait the last. */
  private busy = false;
  private again = false;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.first = store.doc;
    this.turn = turnOf(store.doc);
    panel.append(this.controls, this.status, this.table);
    this.build();
    this.paint();
  }

  update(change: string): void {
    if (change === 'host') {
      this.build();
    } else if (change === 'document') {
      if (!this.timer && !this.busy) {
        this.turn = turnOf(this.store.doc);
      }
      this.follow();
      this.paint();
    }
  }

  dispose(): void {
    window.clearTimeout(this.timer);
  }

  private build(): void {
    const found = this.store.doc.knobs!;
    const live = this.store.host.request !== undefined;
    const rows = found.constants.map((knob) =>
      this.slider(knob, (value) => (this.turn.constants[knob.name] = value), live),
    );
    for (const name of OPTIONS) {
      rows.push(this.slider({ name, ...found[name] }, (v) => (this.turn[name] = Number(v)), live, name));
    }
    const switches = h('fieldset.bnb-switches', {}, h('legend', {}, 'optional passes'));
    for (const pass of found.passes) {
      const box = h('input', { type: 'checkbox', checked: pass.on, disabled: !live, id: uniqueId('pass') });
      box.addEventListener('change', () => {
        const off = new Set(this.turn.without);
        if (box.checked) {
          off.delete(pass.name);
        } else {
          off.add(pass.name);
        }
        this.turn.without = [...off].sort();
        this.later();
      });
      switches.append(h('label.bnb-switch', { for: box.id }, box, ` ${pass.name}`));
    }
    const reset = button('Back to the cell’s values', () => this.reset(), { disabled: !live });
    this.controls.replaceChildren(...rows, switches, reset);
    this.status.textContent = live ? found.why : 'Turning needs a live kernel: run the cell again.';
  }

  private slider(
    knob: Knob,
    set: (value: number | boolean) => void,
    live: boolean,
    option?: Option,
  ): HTMLElement {
    const at = Math.max(0, knob.choices.indexOf(knob.value));
    const value = h('output.bnb-value', {}, String(knob.value));
    const input = h('input', {
      type: 'range',
      min: 0,
      max: knob.choices.length - 1,
      step: 1,
      value: at,
      disabled: !live,
      id: uniqueId('knob'),
      'data-knob': knob.name,
      'aria-valuetext': String(knob.value),
    });
    const say = (chosen: number | boolean): void => {
      value.textContent = String(chosen);
      input.setAttribute('aria-valuetext', String(chosen));
    };
    input.addEventListener('input', () => {
      const chosen = knob.choices[Number(input.value)];
      say(chosen);
      set(chosen);
      this.later();
    });
    if (option) {
      this.moves.set(option, (chosen) => {
        input.value = String(Math.max(0, knob.choices.indexOf(chosen)));
        say(chosen);
      });
    }
    return h('div.bnb-knob', {}, h('label', { for: input.id }, knob.name), input, value);
  }

  /** Shows what the compiler has chosen now, where nobody named a number. */
  private follow(): void {
    for (const [name, move] of this.moves) {
      if (this.turn[name] === null) {
        move(this.store.doc.knobs![name].value);
      }
    }
  }

  private reset(): void {
    this.turn = turnOf(this.first);
    this.store.doc.knobs = this.first.knobs;
    this.build();
    this.later();
  }

  private later(): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      void this.ask();
    }, PAUSE);
  }

  private async ask(): Promise<void> {
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    this.status.textContent = 'compiling…';
    try {
      const answer = (await this.store.host.request?.('turn', { knobs: { ...this.turn } })) as {
        document: Document;
      };
      if (!this.again) {
        this.status.textContent = answer.document.knobs?.why ?? '';
        this.store.update(answer.document);
        this.store.host.save?.(answer.document);
      }
    } catch (error) {
      this.status.textContent = String((error as Error).message);
    } finally {
      this.busy = false;
    }
    if (this.again) {
      this.again = false;
      await this.ask();
    }
  }

  private paint(): void {
    const rows = compared(this.first, this.store.doc);
    const table = h('table.bnb-table', {}, h('caption', {}, 'what changed'));
    const head = h(
      'tr',
      {},
      h('td'),
      ...['in the cell', 'now'].map((text) => h('th', { scope: 'col' }, text)),
    );
    table.append(h('thead', {}, head));
    const body = h('tbody');
    for (const [name, before, now] of rows) {
      const mark = before === now ? '' : ' ◂';
      body.append(h('tr', {}, h('th', { scope: 'row' }, name), h('td', {}, before), h('td', {}, now + mark)));
    }
    table.append(body);
    this.table.replaceChildren(table);
  }
}

function turnOf(doc: Document): Turn {
  const found = doc.knobs!;
  return {
    constants: Object.fromEntries(found.constants.map((k) => [k.name, k.value])),
    num_warps: asked(found.num_warps),
    num_stages: asked(found.num_stages),
    without: found.passes.filter((p) => !p.on).map((p) => p.name),
  };
}

/** The number of an option as it was asked for: null leaves it to the compiler. */
function asked({ named, value }: Asked): number | null {
  return named === false ? null : Number(value);
}

/** The rows that tell two cards of one kernel apart: knobs, time, and what the machine code needs. */
export function compared(before: Document, now: Document): [string, string, string][] {
  const rows: [string, string, string][] = [];
  const a = facts(before);
  const b = facts(now);
  for (const name of new Set([...Object.keys(a), ...Object.keys(b)])) {
    rows.push([name, a[name] ?? '', b[name] ?? '']);
  }
  return rows;
}

function facts(doc: Document): Record<string, string> {
  const found: Record<string, string> = {};
  for (const knob of doc.knobs?.constants ?? []) {
    found[knob.name] = String(knob.value);
  }
  if (doc.knobs) {
    found.num_warps = String(doc.knobs.num_warps.value);
    found.num_stages = String(doc.knobs.num_stages.value);
    const off = doc.knobs.passes.filter((pass) => !pass.on).map((pass) => pass.name);
    found['passes switched off'] = off.join(', ') || 'none';
  }
  const launch = doc.launches[doc.launches.length - 1];
  if (launch?.median) {
    found['time (median)'] = time(launch.median);
    if (launch.rate) {
      found.rate = rate(launch.rate);
    }
  }
  for (const view of doc.views) {
    const r = view.resources;
    if (view.target?.startsWith('sm_') && r) {
      found[`registers, ${view.label}`] = String(r.registers ?? '');
      found[`shared memory, ${view.label}`] = `${r.shared_bytes ?? 0} B`;
      found[`spills, ${view.label}`] = `${r.spill_bytes ?? 0} B`;
    }
    const last = view.stages?.[view.stages.length - 1];
    if (last) {
      found[`ops of the last IR, ${view.label}`] = String(last.ops);
    }
  }
  return found;
}
