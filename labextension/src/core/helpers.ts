/**
 * Lines of helper functions that lie in other cells or files than the kernel. A number names such a line: `key * LINES + line`, where the
 * key leads to the text of the helper in the document (see blocknb/notebook/helper_sources.py).
 */

import { line, record, shaped, text, word } from './check';
import type { Document, HelperSource } from './schema';

const LINES = 1 << 20;

/** A line of a helper. */
export interface HelperLine {
  helper: HelperSource;
  line: number;
}

/** Checks the texts of helpers by key. */
export const helperSources = record(
  shaped<HelperSource>({ name: word, file: word, first_line: line, text: text(1 << 20) }),
  /^\d{1,8}$/,
);

/** Returns the number of a line of the helper with a key. */
export function innerOf(key: string, line: number): number {
  return Number(key) * LINES + line;
}

/** Returns the helper and the line that a number names; null if the document does not have the helper. */
export function helperLine(doc: Pick<Document, 'helpers'>, inner: number): HelperLine | null {
  const helper = doc.helpers?.[String(Math.floor(inner / LINES))];
  return helper ? { helper, line: inner % LINES } : null;
}

/** Returns the lines of helpers that are inlined at lines of the kernel. */
export function inlinedAt(doc: Pick<Document, 'inlined'>, lines: readonly number[]): number[] {
  return [...new Set(lines.flatMap((line) => doc.inlined?.[line] ?? []))];
}

/** Returns the lines of the kernel at which a line of a helper is inlined. */
export function callsOf(doc: Pick<Document, 'inlined'>, inner: number): number[] {
  return Object.entries(doc.inlined ?? {}).flatMap(([line, all]) =>
    all.includes(inner) ? [Number(line)] : [],
  );
}
