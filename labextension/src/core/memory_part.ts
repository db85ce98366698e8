/** The part of a document on the memory of a cell. */

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
