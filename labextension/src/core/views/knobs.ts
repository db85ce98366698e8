/**
 * The Knobs view: sliders for tile sizes, warps and stages, and a switch for each optional pass. A change compiles the kernel and, if
 * possible, runs it on copies of the arrays. A table compares the result with the card as it was first shown.
 */

import { button, h, renderBackquotes, uniqueId } from '../dom';
import type { OptionKnob, Document, Knob, KnobSettings, Modified } from '../schema';
import type { Store } from '../store';
import { rate, timing } from '../plot/numbers';
import type { Mounted, ViewSpec } from './spec';

export const knobs: ViewSpec = {
  key: 'knobs',
  title: 'Knobs',
  tooltip: 'Sliders and switches that compile and measure the kernel again',
  empty: (doc) => (doc.knobs ? null : 'An exported page has no knobs, because knobs need a live kernel.'),
  mount: (panel, store) => new Knobs(panel, store),
};

const OPTIONS = ['num_warps', 'num_stages'] as const;
type Option = (typeof OPTIONS)[number];
const OPTION_TOOLTIPS: Record<Option, string> = {
  num_warps: 'Warps per CTA: compiles and measures the kernel again',
  num_stages: 'Stages of a software pipeline: compiles and measures the kernel again',
};

/** Milliseconds between the last change and the request. */
const DEBOUNCE_MS = 60;

class Knobs implements Mounted {
  private readonly controls = h('div.bnb-knobs');
  private readonly status = h('p.bnb-quiet', { role: 'status' });
  private readonly table = h('div.bnb-results');
  /** The document of the run cell, with which changes are compared. */
  private first: Document;
  /** Functions that set the slider of an option. */
  private readonly setters = new Map<Option, (value: number | boolean) => void>();
  private settings: KnobSettings;
  private timer = 0;
  /** Whether a request is in progress. There is one request at a time. */
  private busy = false;
  /** Whether a knob changed during the request. The latest settings follow it. */
  private pending = false;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.first = store.doc;
    this.settings = settingsOf(store.doc);
    panel.append(this.controls, this.status, this.table);
    this.build();
    this.paint();
  }

  update(change: string): void {
    if (change === 'host') {
      this.build();
    } else if (change === 'document') {
      if (isOfCell(this.store.doc, this.first)) {
        this.first = this.store.doc; // the complete document
      }
      if (!this.timer && !this.busy) {
        this.settings = settingsOf(this.store.doc);
      }
      this.showChosenValues();
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
      this.slider(knob, (value) => (this.settings.constants[knob.name] = value), live),
    );
    for (const name of OPTIONS) {
      rows.push(this.slider({ name, ...found[name] }, (v) => (this.settings[name] = Number(v)), live, name));
    }
    const switches = h('fieldset.bnb-switches', {}, h('legend', {}, 'optional passes'));
    for (const pass of found.passes) {
      const box = h('input', { type: 'checkbox', checked: pass.on, disabled: !live, id: uniqueId('pass') });
      const about = this.title(pass.name);
      box.addEventListener('change', () => {
        const off = new Set(this.settings.without);
        if (box.checked) {
          off.delete(pass.name);
        } else {
          off.add(pass.name);
        }
        this.settings.without = [...off].sort();
        this.schedule();
      });
      switches.append(h('label.bnb-switch', { for: box.id, title: about }, box, ` ${pass.name}`));
    }
    const reset = button('Reset to the cell’s values', () => this.reset(), {
      disabled: !live,
      title: 'Show the card of the run cell again',
    });
    this.controls.replaceChildren(...rows, switches, reset);
    this.status.textContent = live ? found.why : 'Knobs need a live kernel. Run the cell again.';
  }

  /** Returns the title of a pass, which an excluded pass does not have. */
  private title(pass: string): string {
    const stages = this.store.doc.views.flatMap((view) => view.stages ?? []);
    return stages.find(({ name }) => name === pass)?.title ?? `Compile with or without ${pass}`;
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
      title: option
        ? OPTION_TOOLTIPS[option]
        : `The constant ${knob.name}: compiles and measures the kernel again`,
      'aria-valuetext': String(knob.value),
    });
    const showValue = (chosen: number | boolean): void => {
      value.textContent = String(chosen);
      input.setAttribute('aria-valuetext', String(chosen));
    };
    input.addEventListener('input', () => {
      const chosen = knob.choices[Number(input.value)];
      showValue(chosen);
      set(chosen);
      this.schedule();
    });
    if (option) {
      this.setters.set(option, (chosen) => {
        input.value = String(Math.max(0, knob.choices.indexOf(chosen)));
        showValue(chosen);
      });
    }
    return h('div.bnb-knob', {}, h('label', { for: input.id }, knob.name), input, value);
  }

  /** Shows the compiler's choice on the sliders of options that the user has not set. */
  private showChosenValues(): void {
    for (const [name, setValue] of this.setters) {
      if (this.settings[name] === null) {
        setValue(this.store.doc.knobs![name].value);
      }
    }
  }

  private reset(): void {
    this.settings = settingsOf(this.first);
    this.store.doc.knobs = this.first.knobs;
    this.build();
    this.schedule();
  }

  private schedule(): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      this.store.run(this.apply());
    }, DEBOUNCE_MS);
  }

  private async apply(): Promise<void> {
    if (this.busy) {
      this.pending = true;
      return;
    }
    this.busy = true;
    this.status.textContent = 'Compiling…';
    try {
      const answer = (await this.store.host.request?.('turn', { knobs: { ...this.settings } })) as {
        document: Document;
        saved?: Document;
      };
      if (!this.pending) {
        this.status.textContent = answer.document.knobs?.why ?? '';
        this.store.update(answer.document);
        this.store.host.save?.(answer.saved ?? answer.document);
      }
    } catch (error) {
      this.status.textContent = String((error as Error).message);
    } finally {
      this.busy = false;
    }
    if (this.pending) {
      this.pending = false;
      await this.apply();
    }
  }

  private paint(): void {
    const rows = comparisonRows(this.first, this.store.doc);
    const { verdict } = this.store.doc.modified ?? {};
    const differs = verdict === 'faster' || verdict === 'slower'; // beyond noise
    const table = h('table.bnb-table', {}, h('caption', {}, 'Changes'));
    const head = h(
      'tr',
      {},
      h('td'),
      ...['in the cell', 'now'].map((text) => h('th', { scope: 'col' }, text)),
    );
    table.append(h('thead', {}, head));
    const body = h('tbody');
    for (const [name, before, now] of rows) {
      const timed = name === 'time' || name === 'rate';
      const mark = before === now || !now || (timed && !differs) ? '' : ' ◂';
      body.append(
        h('tr', {}, h('th', { scope: 'row' }, name), h('td', {}, before), h('td', {}, (now || '–') + mark)),
      );
    }
    table.append(body);
    const { modified } = this.store.doc;
    this.table.replaceChildren(
      ...(modified ? [comparison(modified, this.store.doc === this.first)] : []),
      table,
    );
  }
}

const MARKS = { faster: '▲ ', slower: '▼ ', noise: '', wrong: '', unmeasured: '' } as const;

/** Renders the comparison of a change with the cell. In a saved card it stands beside the values of the cell. */
function comparison(modified: Modified, saved: boolean): HTMLElement {
  const head = saved ? 'Changed after the cell ran (the rest of the card shows the cell): ' : 'Changed: ';
  const lines = [
    modified.outputs && modified.verdict !== 'wrong' ? `Outputs: ${modified.outputs}.` : '',
    modified.cell && modified.now
      ? `Cell: ${timing(modified.cell)}. Now: ${timing(modified.now)}. Both in turns.`
      : '',
    ...modified.notes,
  ].filter(Boolean);
  return h(
    'div.bnb-modified',
    { 'data-verdict': modified.verdict },
    h('p', {}, head, h('code', {}, modified.settings)),
    h('p.bnb-verdict', {}, MARKS[modified.verdict], ...renderBackquotes(modified.text)),
    ...lines.map((line) => h('p.bnb-quiet', {}, line)),
  );
}

/** Tells whether a document shows the run cell like another one, and not what the user changed afterwards. */
function isOfCell(doc: Document, first: Document): boolean {
  const edited = doc.views.some((view) => view.stages?.some((stage) => stage.edited));
  return !doc.modified && !edited && JSON.stringify(settingsOf(doc)) === JSON.stringify(settingsOf(first));
}

function settingsOf(doc: Document): KnobSettings {
  const found = doc.knobs!;
  return {
    constants: Object.fromEntries(found.constants.map((k) => [k.name, k.value])),
    num_warps: requestedValue(found.num_warps),
    num_stages: requestedValue(found.num_stages),
    without: found.passes.filter((p) => !p.on).map((p) => p.name),
  };
}

/** Returns the value that the user requested for an option. null leaves the choice to the compiler. */
function requestedValue({ named, value }: OptionKnob): number | null {
  return named === false ? null : Number(value);
}

/** Returns the rows that compare two cards of a kernel: knobs, time and resources. */
export function comparisonRows(before: Document, now: Document): [string, string, string][] {
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
    found['disabled passes'] = off.join(', ') || 'none';
  }
  const launch = doc.launches[doc.launches.length - 1];
  if (launch?.time) {
    found.time = timing(launch.time);
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
      found[`ops in the final IR, ${view.label}`] = String(last.ops);
    }
  }
  return found;
}
