/**
 * A line diff of two listings that uses op ids. An op keeps its id through all passes, so two lines with the same id show the same op,
 * even if its text differs. Lines without an id are compared as text.
 *
 * The diff first aligns the ops by the longest increasing subsequence of their ids (patience diff). Between the aligned ops it aligns
 * lines by the longest common subsequence of their texts. A typical pass takes linear time.
 */

import type { Listing } from './schema';

/** Lines [fromA, toA) of the left listing became lines [fromB, toB) of the right one, 0-based. */
export interface Hunk {
  fromA: number;
  toA: number;
  fromB: number;
  toB: number;
}

/** Lines [i, i + n) on the left correspond to lines [j, j + n) on the right. */
export type Run = readonly [number, number, number];

/** What else is known about two listings: see the fields. */
export interface DiffHints {
  /** Maps an op of the right listing to the ops of the left one that it replaces or copies. */
  origins?: ReadonlyMap<number, readonly number[]>;
  /** The lines that correspond, as the kernel matched them: equal ones, and those that differ. Nothing is compared then. */
  matched?: { same: readonly Run[]; aligned: readonly Run[] };
}

/** The result of a diff: hunks of lines, and sets of op ids. */
export interface Difference {
  hunks: Hunk[];
  /** Maps each further copy of an op to the op on the left. */
  copies: Map<number, number>;
  /** Ops whose order relative to the other ops changed. */
  moved: Set<number>;
  /** Ops whose line has another text. */
  changed: Set<number>;
  /** Ops that only the right listing has. */
  added: Set<number>;
  /** Ops that only the left listing has. */
  removed: Set<number>;
}

type Lines = { text: string[]; op: number[] };

function split(listing: Listing): Lines {
  const text = listing.text.split('\n');
  return { text, op: text.map((_, i) => listing.ops?.[i] ?? -1) };
}

const LAYOUT = /^#(\w+) = (.*)$/;

/** Replaces layout names (`#a`) by the layouts. Every listing has its own layout names, so names cannot be compared. */
export function expandLayouts(text: readonly string[]): string[] {
  const found = new Map<string, string>();
  text.forEach((line) => {
    const [, letter, layout] = LAYOUT.exec(line) ?? [];
    if (letter) {
      found.set(letter, layout);
    }
  });
  return text.map(
    (line) =>
      LAYOUT.exec(line)?.[2] ??
      line.replace(/#(\w+)/g, (whole, letter: string) => found.get(letter) ?? whole),
  );
}

/**
 * Compares two listings. By default it matches op ids, which are valid within one compilation. `byText` compares two versions or two
 * kernels: it matches lines up to one consistent renaming of their values (`%12`).
 */
export function difference(a: Listing, b: Listing, byText = false, hints: DiffHints = {}): Difference {
  const one = split(a);
  const two = split(b);
  const found: Difference = {
    hunks: [],
    copies: new Map(),
    moved: new Set(),
    changed: new Set(),
    added: new Set(),
    removed: new Set(),
  };
  if (hints.matched) {
    const [same, aligned] = [hints.matched.same, hints.matched.aligned].map(pairsOf);
    found.hunks = hunksBetween(same, one.text.length, two.text.length, aligned);
    return found;
  }
  if (byText) {
    const { same, renamed } = matchUpToRenaming(one.text, two.text);
    const whole = hunksBetween(same, one.text.length, two.text.length, renamed);
    const pairs = whole.flatMap((hunk) => pairSimilarLines(one.text, two.text, hunk));
    const aligned = new Map([...renamed, ...pairs]);
    found.hunks = whole.flatMap((hunk) => splitAtPairs(hunk, aligned));
    return found;
  }
  one.text = expandLayouts(one.text);
  two.text = expandLayouts(two.text);
  const heirs = heirsOf(one, two, hints.origins, found.copies);
  const pairs = opPairs(one, { ...two, op: two.op.map((op) => heirs.get(op) ?? op) }, found);
  let [i, j] = [0, 0];
  const rows: [number, number][] = []; // pairs of equal lines
  for (const [x, y] of [...pairs, [one.text.length, two.text.length] as [number, number]]) {
    rows.push(...commonSubsequence(one.text, i, x, two.text, j, y));
    if (x < one.text.length && one.text[x] === two.text[y]) {
      rows.push([x, y]);
    }
    [i, j] = [x + 1, y + 1];
  }
  found.hunks = hunksBetween(rows, one.text.length, two.text.length, pairs);
  return found;
}

function pairsOf(runs: readonly Run[]): [number, number][] {
  return runs.flatMap(([i, j, n]) => Array.from({ length: n }, (_, k): [number, number] => [i + k, j + k]));
}

const OP = /^(\s*)(?:[^=]*= )?([a-z_0-9]+)/;

/**
 * Maps the new op that continues a removed one to its id: of the same name, at the same depth where there are several. Other new ops of
 * that name are copies, and so are new ops with the name of an op that stays.
 */
function heirsOf(
  one: Lines,
  two: Lines,
  origins: DiffHints['origins'],
  copies: Map<number, number>,
): Map<number, number> {
  const heirs = new Map<number, number>();
  const form = (line: string): string[] => OP.exec(line)?.slice(1) ?? ['', ''];
  const old = new Map(one.op.map((op, i) => [op, form(one.text[i])]));
  const stays = new Set(two.op.filter((op) => old.has(op)));
  const made = new Map<number, { op: number; indent: string }[]>();
  two.op.forEach((op, j) => {
    const [indent, name] = form(two.text[j]);
    const origin = origins?.get(op)?.find((id) => old.get(id)?.[1] === name);
    if (op >= 0 && origin !== undefined && !old.has(op)) {
      made.set(origin, [...(made.get(origin) ?? []), { op, indent }]);
    }
  });
  for (const [origin, ops] of made) {
    const indent = old.get(origin)![0];
    const heir = stays.has(origin) ? null : (ops.find((one) => one.indent === indent) ?? ops[0]).op;
    ops.forEach(({ op }) => (op === heir ? heirs.set(op, origin) : copies.set(op, origin)));
  }
  return heirs;
}

/** Returns pairs of lines that show the same op, in an order that both sides share. Fills the sets of `found`. */
function opPairs(one: Lines, two: Lines, found: Difference): [number, number][] {
  const where = new Map<number, number>();
  two.op.forEach((op, j) => op >= 0 && !where.has(op) && where.set(op, j));
  const both: [number, number][] = [];
  const seen = new Set<number>();
  one.op.forEach((op, i) => {
    if (op < 0 || seen.has(op)) {
      return;
    }
    seen.add(op);
    const j = where.get(op);
    if (j === undefined) {
      found.removed.add(op);
    } else {
      both.push([i, j]);
      if (one.text[i] !== two.text[j]) {
        found.changed.add(op);
      }
    }
  });
  where.forEach((_, op) => !seen.has(op) && found.added.add(op));
  const kept = longestIncreasing(both);
  const keep = new Set(kept.map(([i]) => i));
  both.forEach(([i]) => !keep.has(i) && found.moved.add(one.op[i]));
  return kept;
}

/** Returns the longest subsequence of pairs, sorted by first component, whose second components increase. */
function longestIncreasing(pairs: [number, number][]): [number, number][] {
  const tails: number[] = []; // tails[n]: index of the pair with the smallest end of a subsequence of length n + 1
  const before: number[] = [];
  pairs.forEach(([, y], at) => {
    let [low, high] = [0, tails.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[tails[middle]][1] < y) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    before[at] = low > 0 ? tails[low - 1] : -1;
    tails[low] = at;
  });
  const run: [number, number][] = [];
  for (let at = tails.length ? tails[tails.length - 1] : -1; at >= 0; at = before[at]) {
    run.push(pairs[at]);
  }
  return run.reverse();
}

const NAME = /%[\w.]+/g;

/** Matches lines up to a renaming of values. `same` fits one renaming; `renamed` has equal text but does not fit it. */
function matchUpToRenaming(
  a: string[],
  b: string[],
): { same: [number, number][]; renamed: [number, number][] } {
  const without = (line: string): string => line.replace(NAME, '%');
  const there = new Map<string, string>();
  const back = new Map<string, string>();
  const same: [number, number][] = [];
  const renamed: [number, number][] = [];
  for (const [i, j] of commonSubsequence(a.map(without), 0, a.length, b.map(without), 0, b.length)) {
    const names = a[i].match(NAME) ?? [];
    const others = b[j].match(NAME) ?? [];
    const fits = names.every(
      (name, k) => (there.get(name) ?? others[k]) === others[k] && (back.get(others[k]) ?? name) === name,
    );
    (fits ? same : renamed).push([i, j]);
    // A line that does not fit still maps its result, the first name, to a name on the other side.
    (fits ? names : names.slice(0, 1)).forEach((name, k) => {
      if (!there.has(name) && !back.has(others[k])) {
        there.set(name, others[k]);
        back.set(others[k], name);
      }
    });
  }
  return { same, renamed };
}

const MIN_SIMILARITY = 0.5; // share of commonSubsequence words above which two lines are paired
const MAX_LINE_PAIRS = 2_000; // pairs of lines compared in one hunk

/** Pairs the lines of a hunk that share most of their words, in an order that both sides share. */
function pairSimilarLines(a: string[], b: string[], { fromA, toA, fromB, toB }: Hunk): [number, number][] {
  const [n, m] = [toA - fromA, toB - fromB];
  if (!n || !m || n === m || n * m > MAX_LINE_PAIRS) {
    return []; // equal numbers of lines are shown side by side without pairing
  }
  const score = Array.from({ length: n }, (_, i) =>
    Array.from({ length: m }, (_, j) => similarity(a[fromA + i], b[fromB + j])),
  );
  const best = Array.from({ length: n + 1 }, () => new Float64Array(m + 1));
  const paired = (i: number, j: number): number =>
    score[i][j] > MIN_SIMILARITY ? score[i][j] + best[i + 1][j + 1] : -1;
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      best[i][j] = Math.max(best[i + 1][j], best[i][j + 1], paired(i, j));
    }
  }
  const pairs: [number, number][] = [];
  for (let [i, j] = [0, 0]; i < n && j < m;) {
    if (best[i][j] === paired(i, j)) {
      pairs.push([fromA + i++, fromB + j++]);
    } else if (best[i][j] === best[i + 1][j]) {
      i++;
    } else {
      j++;
    }
  }
  return pairs;
}

/** Returns the share of words that two lines have in commonSubsequence. */
function similarity(a: string, b: string): number {
  const one = a.match(/[%\w.]+/g) ?? [];
  const two = b.match(/[%\w.]+/g) ?? [];
  const left = [...two];
  const shared = one.filter((word) => {
    const at = left.indexOf(word);
    return at >= 0 && left.splice(at, 1).length;
  });
  return one.length + two.length ? (2 * shared.length) / (one.length + two.length) : 0;
}

const MAX_TABLE_CELLS = 4_000_000; // of the dynamic program; a larger range becomes one hunk

/** Returns the longest common subsequence of two ranges of lines or words, as pairs of indices. */
export function commonSubsequence(
  a: string[],
  i0: number,
  i1: number,
  b: string[],
  j0: number,
  j1: number,
): [number, number][] {
  const rows: [number, number][] = [];
  while (i0 < i1 && j0 < j1 && a[i0] === b[j0]) {
    rows.push([i0++, j0++]);
  }
  const tail: [number, number][] = [];
  while (i0 < i1 && j0 < j1 && a[i1 - 1] === b[j1 - 1]) {
    tail.push([--i1, --j1]);
  }
  const [n, m] = [i1 - i0, j1 - j0];
  if (n > 0 && m > 0 && n * m <= MAX_TABLE_CELLS) {
    const width = m + 1;
    const length = new Uint32Array((n + 1) * width);
    for (let i = n - 1; i >= 0; i--) {
      for (let j = m - 1; j >= 0; j--) {
        length[i * width + j] =
          a[i0 + i] === b[j0 + j]
            ? length[(i + 1) * width + j + 1] + 1
            : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
      }
    }
    for (let [i, j] = [0, 0]; i < n && j < m;) {
      if (a[i0 + i] === b[j0 + j]) {
        rows.push([i0 + i++, j0 + j++]);
      } else if (length[(i + 1) * width + j] >= length[i * width + j + 1]) {
        i++;
      } else {
        j++;
      }
    }
  }
  return [...rows, ...tail.reverse()];
}

/** Returns the hunks between equal lines, split at aligned pairs of lines that differ. */
function hunksBetween(rows: [number, number][], n: number, m: number, aligned: [number, number][]): Hunk[] {
  const hunks: Hunk[] = [];
  const starts = new Map(aligned);
  let [i, j] = [0, 0];
  for (const [x, y] of [...rows, [n, m] as [number, number]]) {
    if (x > i || y > j) {
      hunks.push(...splitAtPairs({ fromA: i, toA: x, fromB: j, toB: y }, starts));
    }
    [i, j] = [x + 1, y + 1];
  }
  return hunks;
}

/** Splits a hunk before and after each aligned pair, so that the two lines of an op are side by side. */
function splitAtPairs(hunk: Hunk, aligned: Map<number, number>): Hunk[] {
  const parts: Hunk[] = [];
  let { fromA, fromB } = hunk;
  for (let i = hunk.fromA; i < hunk.toA; i++) {
    const j = aligned.get(i);
    if (j === undefined || j < fromB || j >= hunk.toB) {
      continue;
    }
    if (i > fromA || j > fromB) {
      parts.push({ fromA, toA: i, fromB, toB: j });
    }
    parts.push({ fromA: i, toA: i + 1, fromB: j, toB: j + 1 });
    [fromA, fromB] = [i + 1, j + 1];
  }
  if (fromA < hunk.toA || fromB < hunk.toB) {
    parts.push({ fromA, toA: hunk.toA, fromB, toB: hunk.toB });
  }
  return parts;
}
