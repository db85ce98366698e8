/** The part of a document on the memory of a cell, and its check. */

import { type Check, count, flag, integer, line, list, nullable, number, shaped, text, word } from './check';

/** Bytes before and after the cell, and their peak (null: not measured). */
export interface MemoryPool {
  name: string;
  before: number;
  after: number;
  peak: number | null;
}

/** What the launches of a kernel allocated: bytes and blocks (null on a CPU), and the highest peak of one launch. */
export interface MemoryLaunch {
  kernel: string;
  device: number;
  launches: number;
  bytes: number | null;
  blocks: number | null;
  peak: number;
}

/** The copies of one line of code. `line` is a line of the kernel’s cell, or null. `by`: "blocknb" made them for a launch. */
export interface MemoryCopy {
  direction: string;
  bytes: number;
  times: number;
  line: number | null;
  place: string;
  code: string;
  by: string;
}

/** Memory that names hold together. `new`: it did not exist before the cell. */
export interface MemoryArray {
  names: string[];
  bytes: number;
  arrays: number;
  what: string;
  place: string;
  new: boolean;
}

/** The memory of a cell. `kept` bytes of new arrays have a name after it, and `unnamed` bytes exist without one. */
export interface Memory {
  pools: MemoryPool[];
  launches: MemoryLaunch[];
  copies: MemoryCopy[];
  arrays: MemoryArray[];
  more_arrays: number;
  kept: number;
  unnamed: number;
  notes: string[];
}

const bytes = number(0);
/** The check of the memory of a cell. */
export const memory: Check = shaped<Memory>({
  pools: list(shaped<MemoryPool>({ name: word, before: bytes, after: bytes, peak: nullable(bytes) }), 1000),
  launches: list(
    shaped<MemoryLaunch>({
      kernel: word,
      device: integer(-1),
      launches: count,
      bytes: nullable(bytes),
      blocks: nullable(count),
      peak: bytes,
    }),
    1000,
  ),
  copies: list(
    shaped<MemoryCopy>({
      direction: word,
      bytes,
      times: count,
      line: nullable(line),
      place: word,
      code: word,
      by: word,
    }),
    1000,
  ),
  arrays: list(
    shaped<MemoryArray>({
      names: list(word, 100),
      bytes,
      arrays: count,
      what: word,
      place: word,
      new: flag,
    }),
    1000,
  ),
  more_arrays: count,
  kept: bytes,
  unnamed: bytes,
  notes: list(text(1 << 16), 1000),
});
