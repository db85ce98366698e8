/** The document's key for the workers of a cluster, and its check. */

import { all, type Check, count, holds, list, nullable, number, shaped, word } from './check';

/** The launches of a kernel on one worker. `compile_ms` is null for code from a cache. */
export interface WorkerRow {
  worker: string;
  device: string;
  launches: number;
  compile_ms: number | null;
  ms: number;
  total_ms: number;
  bytes: number;
}

/** The workers that launched the kernel, and the address of Dask’s dashboard, "" without one. */
export interface Workers {
  dashboard: string;
  rows: WorkerRow[];
}

const row = shaped<WorkerRow>({
  worker: word,
  device: word,
  launches: count,
  compile_ms: nullable(number(0)),
  ms: number(0),
  total_ms: number(0),
  bytes: number(0),
});

/** The check of the workers. A link from a notebook leads to a web page only, and runs no script. */
export const workers: Check = shaped<Workers>({
  dashboard: all(
    word,
    holds<string>((url) => url === '' || /^https?:\/\//.test(url), 'the address of a web page'),
  ),
  rows: list(row, 10_000),
});
