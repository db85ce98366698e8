/**
 * The state of a card as the text of a link: a tab, and short names with their values, such as `v1;passes;pass:coalesce.12;line:5`. A link
 * to a notebook has it in the query (`?blocknb=...`), and a link into an exported page in the fragment (`#card-2=...`).
 *
 * The text has no character that an address escapes, so that people can read and change it. Links of earlier versions name a tab and a
 * stage: `passes.coalesce`.
 */

/** Short names and their values: numbers, and names that the card or the view looks up. */
export type LinkParts = Readonly<Record<string, string>>;

/** A tab by its key, and what it shows. `newer`: the link comes from a newer version, whose parts may mean more. */
export interface LinkTarget {
  tab: string;
  parts: LinkParts;
  newer?: boolean;
}

const VERSION = 1;
const WORD = /^[\w-]{1,64}$/;
const MOST = 2000; // characters of a link's text
const LONGEST = 100; // characters of a value

/**
 * The characters that a value may not have in the text, and what stands for them. A query is decoded once before `readTarget` gets it, and a
 * fragment is not, so `%3B` would be ambiguous.
 */
const MARKS = { '~': '~0', ';': '~1', '%': '~2' };

function marked(value: string): string {
  return value.replace(/[~;%]/g, (character) => MARKS[character as keyof typeof MARKS]);
}

function unmarked(text: string): string {
  return text.replace(/~([012])/g, (_, digit) => '~;%'[Number(digit)]);
}

/** Writes a state for a link. */
export function targetText({ tab, parts }: LinkTarget): string {
  const pairs = Object.entries(parts).map(([name, value]) => `;${name}:${encodeURIComponent(marked(value))}`);
  return `v${VERSION};${tab}${pairs.join('')}`;
}

/** Reads a state from a link; null if the text is none. */
export function readTarget(text: string | null | undefined): LinkTarget | null {
  if (!text || text.length > MOST) {
    return null;
  }
  const [first, ...rest] = text.split(/;|%3B/i);
  const version = /^v(\d{1,4})$/.exec(first)?.[1];
  if (version === undefined) {
    return rest.length ? null : readEarlier(first);
  }
  const [tab, ...pairs] = rest;
  const parts = pairs.map(readPair);
  if (!WORD.test(tab ?? '') || parts.includes(null)) {
    return null;
  }
  const found = { tab, parts: Object.fromEntries(parts as [string, string][]) };
  return Number(version) > VERSION ? { ...found, newer: true } : found;
}

/** Reads `sweep` or `passes.coalesce`. */
function readEarlier(text: string): LinkTarget | null {
  const [tab, stage, ...rest] = text.split('.');
  if (!WORD.test(tab) || rest.length || (stage !== undefined && !WORD.test(stage))) {
    return null;
  }
  return { tab, parts: stage === undefined ? {} : { pass: stage } };
}

function readPair(pair: string): [string, string] | null {
  const [, name, value] = /^([\w-]{1,64})(?::|%3A)(.+)$/is.exec(pair) ?? [];
  if (!name) {
    return null;
  }
  try {
    const found = unmarked(decodeURIComponent(value));
    return found.length <= LONGEST ? [name, found] : null;
  } catch {
    return null; // a value that no link has, such as `%zz`
  }
}

/** What a view adds to links, and how it follows them. */
export interface ViewLink {
  /** Returns the state of the view. */
  now(): LinkParts;
  /**
   * Shows a state, or the nearest one that the view has, as soon as its content is loaded. `missing` receives a sentence for each part
   * that is gone.
   */
  follow(parts: LinkParts, missing: (sentence: string) => void): void;
}

/** Reads a whole number of a link, within 0 and `most`. `missing` hears of another number by its name. undefined: the link has none. */
export function numberIn(
  parts: LinkParts,
  name: string,
  most: number,
  missing: (sentence: string) => void,
): number | undefined {
  const text = parts[name];
  if (text === undefined) {
    return undefined;
  }
  const wanted = /^\d{1,9}$/.test(text) ? Number(text) : NaN;
  if (wanted <= most) {
    return wanted;
  }
  missing(`There is no ${name} ${text}`);
  return Number.isNaN(wanted) ? undefined : Math.max(0, most);
}
