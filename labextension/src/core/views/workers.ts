/**
 * The Workers view of a distributed launch: a row for each worker of the Dask cluster, and a link to the dashboard. A card has it if its cell
 * had `--client`.
 */

import { h } from '../dom';
import { size, time } from '../plot/numbers';
import { table } from '../plot/table';
import type { Workers, WorkerRow } from '../schema';
import { paintedView } from '../painted_view';
import type { ViewSpec } from './spec';

export const workers: ViewSpec = {
  key: 'workers',
  title: 'Workers',
  tooltip: 'The launches on each worker of the cluster',
  empty: (doc) =>
    doc.workers
      ? null
      : 'There are no workers. %%blockkernel --client CLIENT shows the launches on the workers of a Dask cluster.',
  mount: (panel, store) =>
    paintedView(workers, panel, store, ({ workers: found }) =>
      found ? [table(caption(found), HEADS, found.rows.map(cells)), dashboard(found)] : null,
    ),
};

const HEADS = ['worker', 'device', 'launches', 'compile', 'median launch', 'all launches', 'bytes moved'];

function caption({ rows }: Workers): string {
  const launches = rows.reduce((sum, row) => sum + row.launches, 0);
  const [some, many] = [launches === 1 ? 'launch' : 'launches', rows.length === 1 ? 'worker' : 'workers'];
  return `${launches} ${some} on ${rows.length} ${many}. Bytes moved: those of the arrays of all launches`;
}

function cells(row: WorkerRow): string[] {
  return [
    row.worker,
    row.device,
    String(row.launches),
    row.compile_ms === null ? 'from the cache' : time(row.compile_ms),
    time(row.ms),
    time(row.total_ms),
    size(row.bytes),
  ];
}

/** A link to the dashboard. The check of a document accepts addresses of web pages only. */
function dashboard({ dashboard }: Workers): HTMLElement {
  return dashboard
    ? h(
        'p',
        {},
        h('a', { href: dashboard, target: '_blank', rel: 'noopener noreferrer' }, 'Open Dask’s dashboard'),
      )
    : h('p.bnb-quiet', {}, 'The cluster has no dashboard.');
}
