/**
 * Converts documents of older schemas, which saved notebooks contain. Before schema 4, each view stored times in a form of its own, and no
 * document said whether a time was cold.
 */

import { type Document, SCHEMA, type Time } from './schema';

interface OldTime {
  median?: number | null;
  milliseconds?: number | number[] | null;
  low?: number;
  high?: number;
  launches?: number;
}

/** Returns the document in the newest schema. */
export function upgrade(doc: Document): Document {
  if (doc.schema >= 4) {
    return doc;
  }
  const { launches, history, bench, roofline } = doc;
  return {
    ...doc,
    schema: SCHEMA,
    launches: launches.map((row) => ({ ...row, time: timeOf(row), first: null, not_repeated: '' })),
    ...(history && { history: { versions: history.versions.map((v) => ({ ...v, time: timeOf(v) })) } }),
    ...(bench && {
      bench: {
        ...bench,
        rows: bench.rows.map((row) => ({ ...row, time: timeOf(row, bench.rounds) ?? undefined })),
      },
    }),
    ...(roofline && {
      roofline: {
        ...roofline,
        points: roofline.points.flatMap((p) => {
          const time = timeOf(p);
          return time ? [{ ...p, time }] : [];
        }),
      },
    }),
  };
}

function timeOf(row: object, runs = 0): Time | null {
  const { median, milliseconds, low, high, launches } = row as OldTime;
  const value = median ?? (typeof milliseconds === 'number' ? milliseconds : null);
  if (value === null) {
    return null;
  }
  return {
    n: launches ?? runs,
    cold: null,
    median: value,
    low: low ?? value,
    high: high ?? value,
    device: '',
  };
}
