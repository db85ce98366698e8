/**
 * Decodes packed parts of a document: JSON, compressed by gzip and encoded in base64, within a budget.
 *
 * One kilobyte of gzip can hold a megabyte of zeros, so a small notebook could fill the memory of the page. A Budget limits what all
 * parts of a card inflate to. Without an action of the user a card inflates AUTOMATIC characters, which is more than nearly all
 * cards need. After a click it may inflate MOST.
 */

import { type Check, Invalid } from './check';
import { delta, listing, type Templates } from './packed_parts';
import type { Listing } from './schema';

/** Characters that a card inflates before the user asks for more. */
export const AUTOMATIC = 1 << 24;
/** Characters that a card inflates at most. */
export const MOST = 1 << 28;

/** A part that is larger than the rest of the budget. `asks`: a click raises the budget. */
export class TooLarge extends Error {
  constructor(readonly asks: boolean) {
    super(asks ? 'The text is large.' : 'The text is larger than this page shows.');
  }
}

/** The characters that a card may still inflate. */
export class Budget {
  private spent = 0;

  constructor(private limit = AUTOMATIC) {}

  /** Takes characters. Throws TooLarge if not enough are left. */
  take(characters: number): void {
    if (this.spent + characters > this.limit) {
      throw new TooLarge(this.limit < MOST);
    }
    this.spent += characters;
  }

  /** Allows what a user may see who asked for it. */
  raise(): void {
    this.limit = MOST;
  }
}

/** Decodes a packed part. Rejects with TooLarge, Invalid, or the error of a decoder. */
export async function inflate(packed: string, budget: Budget, check: Check): Promise<unknown> {
  return inflateBytes(
    Uint8Array.from(atob(packed), (c) => c.charCodeAt(0)),
    budget,
    check,
  );
}

/** Decodes JSON that is compressed by gzip. Rejects as `inflate` does. */
export async function inflateBytes(
  bytes: Uint8Array<ArrayBuffer>,
  budget: Budget,
  check: Check,
): Promise<unknown> {
  const reader = new Response(bytes).body!.pipeThrough(new DecompressionStream('gzip')).getReader();
  const decoder = new TextDecoder();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      break;
    }
    try {
      budget.take(value.length);
    } catch (error) {
      void reader.cancel().catch(() => {});
      throw error;
    }
    text += decoder.decode(value, { stream: true });
  }
  const found: unknown = JSON.parse(text + decoder.decode());
  check(found, 'the text');
  return found;
}

/** A range of lines of the base listing, or new lines (see blocknb/notebook/blobs.py). */
type DeltaPart = [number, number] | (Listing & { ops: number[] });

/** Decodes a blob. A blob can be a difference to another one, which `base` reads. Rejects malformed input. */
export async function unpack(
  packed: string,
  budget: Budget,
  base: (hash: string) => Promise<Listing | null>,
): Promise<Listing> {
  const [content, hash] = packed.split(' ');
  if (!hash) {
    const found = (await inflate(content, budget, listing)) as Listing | Templates;
    return 'templates' in found ? applyTemplates(found, budget) : found;
  }
  const parts = (await inflate(content, budget, delta)) as DeltaPart[];
  return applyDelta(parts, await base(hash), budget);
}

/** The mark for a number in a template. */
const MARK = '\x7f';

/** Puts the numbers into the templates. Throws Invalid if there are too few or too many. */
function applyTemplates(found: Templates, budget: Budget): Listing {
  const marks = found.templates.reduce((sum, template) => sum + countMarks(template), 0);
  if (marks > found.numbers.length) {
    throw new Invalid('The numbers of this text do not fit its templates.');
  }
  const pieces = found.templates.map((template) => template.split(MARK));
  const last = pieces.map((row) => new Array<number>(row.length - 1).fill(0));
  const { numbers } = found;
  let at = 0;
  const texts = found.rows.map((row) => {
    const now = last[row];
    let text = pieces[row][0];
    for (let i = 0; i < now.length; i++) {
      now[i] += numbers[at++] ?? NaN;
      text += now[i] + pieces[row][i + 1];
    }
    budget.take(text.length + 1);
    return text;
  });
  if (at !== numbers.length) {
    throw new Invalid('The numbers of this text do not fit its templates.');
  }
  const lines = sums(found.lines);
  const { ops, inner } = found;
  return {
    text: texts.join('\n'),
    lines,
    ...(ops && { ops: sums(ops) }),
    ...(inner && { inner: sums(inner) }),
  };
}

function countMarks(template: string): number {
  let marks = 0;
  for (let at = template.indexOf(MARK); at >= 0; at = template.indexOf(MARK, at + 1)) {
    marks += 1;
  }
  return marks;
}

/** Inverts differences to the value before. */
function sums(steps: number[]): number[] {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

function applyDelta(parts: DeltaPart[], base: Listing | null, budget: Budget): Listing {
  if (!base?.ops) {
    throw new Invalid('The base listing of this difference is missing.');
  }
  const { text, lines, ops, inner } = base;
  const texts = text.split('\n');
  const rows = parts.map((part) => {
    if (!Array.isArray(part)) {
      return part;
    }
    const row = {
      text: texts.slice(...part).join('\n'),
      lines: lines.slice(...part),
      ops: ops.slice(...part),
      ...(inner && { inner: inner.slice(...part) }),
    };
    budget.take(row.text.length + row.lines.length);
    return row;
  });
  const filled = rows.filter((row) => row.lines.length);
  return {
    text: filled.map((row) => row.text).join('\n'),
    lines: filled.flatMap((row) => row.lines),
    ops: filled.flatMap((row) => row.ops),
    ...(filled.some((row) => row.inner) && {
      inner: filled.flatMap((row) => row.inner ?? row.lines.map(() => 0)),
    }),
  };
}
