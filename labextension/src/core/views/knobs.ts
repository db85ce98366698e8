/**
 * The Knobs view: sliders for tile sizes, warps and stages, and a switch for each optional pass. A change compiles the kernel and, if
 * possible, runs it on copies of the arrays. A table compares the result with the card as it was first shown.
 */

import { h, renderBackquotes } from '../dom';
import { knobControls, type KnobControls } from '../knob_controls';
import { knobsOf, type KnobSession } from '../knob_session';
import type { Document, Modified } from '../schema';
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

class Knobs implements Mounted {
  private readonly session: KnobSession;
  private readonly controls: KnobControls;
  private readonly status = h('p.bnb-quiet', { role: 'status' });
  private readonly table = h('div.bnb-results');
  private readonly stop: () => void;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.session = knobsOf(store);
    this.controls = knobControls(store, this.session, true);
    panel.append(this.controls.element, this.status, this.table);
    this.stop = this.session.onChange(() => this.paint()); // a new document, too
    this.paint();
  }

  update(): void {}

  dispose(): void {
    this.stop();
    this.controls.dispose();
  }

  private paint(): void {
    if (this.status.textContent !== this.session.status) {
      this.status.textContent = this.session.status;
    }
    const rows = comparisonRows(this.session.first, this.store.doc);
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
      ...(modified ? [comparison(modified, this.store.doc === this.session.first)] : []),
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
