/**
 * What differs between two listings, by lines, aware of ops: an op keeps its id through every pass, so two lines with one id are the
 * same op however its text has changed, and a text without an id is compared as text.
 *
 * Lines of one compilation are aligned by the longest increasing run of ids (patience), then between those anchors by the longest common subsequence of
 * texts. That is linear for what passes do, and never collapses on big edits as a character diff does.
 */

import type { Listing } from './schema';

/** Lines [fromA, toA) of the one became lines [fromB, toB) of the other; 0-based. */
export interface Hunk {
  fromA: number;
  toA: number;
  fromB: number;
  toB: number;
}

export interface Difference {
  hunks: Hunk[];
  /** Ops whose place among the others is another; ops whose line differs; ops that only one side has. */
  moved: Set<number>;
  changed: Set<number>;
  added: Set<number>;
  removed: Set<number>;
}

type Lines = { text: string[]; op: number[] };

function split(listing: Listing): Lines {
  const text = listing.text.split('\n');
  return { text, op: text.map((_, i) => listing.ops?.[i] ?? -1) };
}

const LAYOUT = /^#(\w+) = (.*)$/;

/** Lines with layouts themselves in place of their letters, which are given anew in every listing, in the order of appearance. */
export function spelledOut(text: readonly string[]): string[] {
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
 * Compares two listings. With op ids, which hold through the passes of one compilation; or `byText`, for two versions or two kernels:
 * their names of values (`%12`) mean nothing to each other, so lines are compared up to a renaming that fits them all.
 */
export function difference(a: Listing, b: Listing, byText = false): Difference {
  const one = split(a);
  const two = split(b);
  const found: Difference = {
    hunks: [],
    moved: new Set(),
    changed: new Set(),
    added: new Set(),
    removed: new Set(),
  };
  if (byText) {
    const { same, renamed } = alike(one.text, two.text);
    const whole = gaps(same, one.text.length, two.text.length, renamed);
    const pairs = whole.flatMap((hunk) => resembling(one.text, two.text, hunk));
    found.hunks = whole.flatMap((hunk) => cut(hunk, new Map([...renamed, ...pairs])));
    return found;
  }
  one.text = spelledOut(one.text);
  two.text = spelledOut(two.text);
  const pairs = anchors(one, two, found);
  let [i, j] = [0, 0];
  const rows: [number, number][] = []; // lines that are the same
  for (const [x, y] of [...pairs, [one.text.length, two.text.length] as [number, number]]) {
    rows.push(...common(one.text, i, x, two.text, j, y));
    if (x < one.text.length && one.text[x] === two.text[y]) {
      rows.push([x, y]);
    }
    [i, j] = [x + 1, y + 1];
  }
  found.hunks = gaps(rows, one.text.length, two.text.length, pairs);
  return found;
}

/** Pairs of lines that show one op, in an order both sides keep; fills the sets. */
function anchors(one: Lines, two: Lines, found: Difference): [number, number][] {
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
  const kept = increasing(both);
  const keep = new Set(kept.map(([i]) => i));
  both.forEach(([i]) => !keep.has(i) && found.moved.add(one.op[i]));
  return kept;
}

/** The longest run of pairs, sorted by their first parts, whose second parts increase. */
function increasing(pairs: [number, number][]): [number, number][] {
  const tails: number[] = []; // index into pairs of the smallest end of a run of each length
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

/** Lines that are the same under one renaming of values, and lines that read the same but do not fit it. */
function alike(a: string[], b: string[]): { same: [number, number][]; renamed: [number, number][] } {
  const without = (line: string): string => line.replace(NAME, '%');
  const there = new Map<string, string>();
  const back = new Map<string, string>();
  const same: [number, number][] = [];
  const renamed: [number, number][] = [];
  for (const [i, j] of common(a.map(without), 0, a.length, b.map(without), 0, b.length)) {
    const names = a[i].match(NAME) ?? [];
    const others = b[j].match(NAME) ?? [];
    const fits = names.every(
      (name, k) => (there.get(name) ?? others[k]) === others[k] && (back.get(others[k]) ?? name) === name,
    );
    (fits ? same : renamed).push([i, j]);
    // A line that does not fit still says what its first name, its result, is called on the other side.
    (fits ? names : names.slice(0, 1)).forEach((name, k) => {
      if (!there.has(name) && !back.has(others[k])) {
        there.set(name, others[k]);
        back.set(others[k], name);
      }
    });
  }
  return { same, renamed };
}

const ENOUGH = 0.5; // of the words of two lines are the same: then the one became the other
const MOST_LINES = 2_000; // pairs of lines looked at in one hunk

/** The lines of a hunk that became each other: those that share most of their words, in an order both sides keep. */
function resembling(a: string[], b: string[], { fromA, toA, fromB, toB }: Hunk): [number, number][] {
  const [n, m] = [toA - fromA, toB - fromB];
  if (!n || !m || n === m || n * m > MOST_LINES) {
    return []; // as many lines on both sides stand side by side as they are
  }
  const score = Array.from({ length: n }, (_, i) =>
    Array.from({ length: m }, (_, j) => resemblance(a[fromA + i], b[fromB + j])),
  );
  const best = Array.from({ length: n + 1 }, () => new Float64Array(m + 1));
  const paired = (i: number, j: number): number =>
    score[i][j] > ENOUGH ? score[i][j] + best[i + 1][j + 1] : -1;
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

/** The share of words that two lines have in common. */
function resemblance(a: string, b: string): number {
  const one = a.match(/[%\w.]+/g) ?? [];
  const two = b.match(/[%\w.]+/g) ?? [];
  const left = [...two];
  const shared = one.filter((word) => {
    const at = left.indexOf(word);
    return at >= 0 && left.splice(at, 1).length;
  });
  return one.length + two.length ? (2 * shared.length) / (one.length + two.length) : 0;
}

const MOST = 4_000_000; // cells of a table of common subsequences; beyond, the gap is one hunk

/** The longest common subsequence of two ranges of lines, or of words. */
export function common(
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
  if (n > 0 && m > 0 && n * m <= MOST) {
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

/** The stretches between lines that are the same; an aligned pair that differs is a hunk of its own kind, joined with its neighbours. */
function gaps(rows: [number, number][], n: number, m: number, aligned: [number, number][]): Hunk[] {
  const hunks: Hunk[] = [];
  const starts = new Map(aligned);
  let [i, j] = [0, 0];
  for (const [x, y] of [...rows, [n, m] as [number, number]]) {
    if (x > i || y > j) {
      hunks.push(...cut({ fromA: i, toA: x, fromB: j, toB: y }, starts));
    }
    [i, j] = [x + 1, y + 1];
  }
  return hunks;
}

/** A stretch cut before and behind each aligned pair in it, so that the two lines of one op stand side by side. */
function cut(hunk: Hunk, aligned: Map<number, number>): Hunk[] {
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
