/** The Reasons view of a compiled model: why graphs ended, and why kernels were not fused, at the user's lines. */

import { button, h } from '../dom';
import type { ProgramLine, TorchPart } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from '../views/spec';
import { nameOf } from './fusion_view';
import { programLines } from './kernels_view';
import { selectionOf } from './selected';

export const reasons: ViewSpec = {
  key: 'reasons',
  title: 'Reasons',
  tooltip: 'Why the graph broke, and why kernels were not fused',
  empty: ({ torch }) => {
    const found = torch && (torch.breaks.length || torch.graphs.some(({ unfused }) => unfused.length));
    return found ? null : 'No graph broke, and Inductor gave no reason against a fusion.';
  },
  mount: (panel, store) => {
    const paint = (): void => panel.replaceChildren(...tables(store));
    paint();
    return { update: (change) => void (change === 'document' && paint()) } satisfies Mounted;
  },
};

function tables(store: Store): HTMLElement[] {
  const part = store.doc.torch;
  return part ? [...breakTable(part), ...unfusedTable(part, store)] : [];
}

function breakTable(part: TorchPart): HTMLElement[] {
  const rows = part.breaks.map(({ graph, reason, line }) => {
    const [first, ...rest] = reason.split('\n');
    const more = rest.join('\n').trim();
    const text = more ? [h('details', {}, h('summary', {}, first), h('pre.bnb-reason', {}, more))] : [first];
    return h('tr', {}, h('th', { scope: 'row' }, `graph ${graph}`), lineCell(line), h('td', {}, ...text));
  });
  return rows.length
    ? [table('Why a graph ended before its function (Dynamo)', ['after', 'line', 'reason'], rows)]
    : [];
}

function unfusedTable(part: TorchPart, store: Store): HTMLElement[] {
  const selection = selectionOf(store);
  const rows = part.graphs.flatMap(({ groups, unfused, name }, graph) =>
    unfused.map(([a, b, reason, line]) => {
      const names = `${nameOf(groups[a])} and ${nameOf(groups[b])}`;
      const show = button(
        'graph',
        () => {
          selection.selectPair(graph, [a, b]);
          store.open('fusion');
        },
        { title: 'Show both kernels in the graph', 'aria-label': `Show ${names} in the graph` },
      );
      return h(
        'tr',
        {},
        h('th', { scope: 'row', title: `${groups[a].call}, ${groups[b].call}` }, names, ' ', show),
        h('td', {}, `${graph}: ${name}`),
        lineCell(line),
        h('td', {}, reason),
      );
    }),
  );
  const caption = 'Why two kernels are not fused (Inductor)';
  return rows.length ? [table(caption, ['kernels', 'graph', 'line of the second', 'reason'], rows)] : [];
}

function lineCell(line: ProgramLine | null): HTMLElement {
  return h('td', {}, ...(line ? programLines([line]) : ['unknown']));
}

function table(caption: string, head: readonly string[], rows: readonly HTMLElement[]): HTMLElement {
  return h(
    'div.bnb-results',
    { tabindex: 0, role: 'region', 'aria-label': caption },
    h(
      'table.bnb-table.bnb-reasons',
      {},
      h('caption', {}, caption),
      h('thead', {}, h('tr', {}, ...head.map((text) => h('th', { scope: 'col' }, text)))),
      h('tbody', {}, ...rows),
    ),
  );
}
