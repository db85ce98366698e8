/**
 * Documents of strangers: bombs, circles, and random mutations of real documents.
 *
 * Whatever the document, the page throws nothing that is not caught, runs no script, and answers within a time. HOSTILE=5000 tests
 * that many mutations, beginning with the number HOSTILE_FIRST.
 */

import { gunzipSync, gzipSync } from 'node:zlib';

import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { problemOf, readable } from '../src/core/documents';
import { difference } from '../src/core/hunks';
import { AUTOMATIC, MOST } from '../src/core/inflate';
import { mount } from '../src/core/mount';
import type { Document, Listing } from '../src/core/schema';
import { Store } from '../src/core/store';
import { fixture, type Name, random, saved, shown, until } from './fixtures';

const MUTATIONS = Number(process.env.HOSTILE ?? 8);
const FIRST = Number(process.env.HOSTILE_FIRST ?? 0);
/** Milliseconds of CPU time for one card with all its tabs, in jsdom. */
const LIMIT_MS = 10_000;

const pack = (content: unknown): string => gzipSync(JSON.stringify(content ?? null)).toString('base64');
const unpack = (packed: string): unknown =>
  JSON.parse(gunzipSync(Buffer.from(packed.split(' ')[0], 'base64')).toString());

const uncaught: unknown[] = [];
const caught = (event: ErrorEvent): void => void uncaught.push(event.error ?? event.message);
const rejected = (reason: unknown): void => void uncaught.push(reason);

beforeAll(() => {
  window.addEventListener('error', caught);
  process.on('unhandledRejection', rejected);
});
afterAll(() => {
  window.removeEventListener('error', caught);
  process.off('unhandledRejection', rejected);
});

const HASH = '0123456789abcdef';
const OTHER = 'fedcba9876543210';

/** A document whose first listing is this blob. */
function withBlob(blobs: Record<string, string>): Document {
  const doc = fixture('scale');
  Object.assign(doc.blobs, blobs);
  delete doc.bench; // which would open first
  doc.views.forEach((view) => view.stages?.forEach((stage) => (stage.text = HASH)));
  doc.views.forEach((view) => (view.code = { ptx: HASH, llvm: HASH }));
  return doc;
}

describe('packed parts', () => {
  test('a bomb is not inflated beyond the budget, and a click shows what is only large', async () => {
    const text = 'x'.repeat(AUTOMATIC + 1);
    const doc = withBlob({ [HASH]: pack({ text, lines: [0], ops: [-1] }) });
    expect(doc.blobs[HASH].length).toBeLessThan(text.length / 500);
    const store = new Store(doc, saved);
    expect(await store.listing(HASH)).toBe(null);
    expect(store.problem).toEqual({ text: 'The text is large.', asks: true });
    store.showLarge();
    expect((await store.listing(HASH))!.text.length).toBe(text.length);
    expect(store.problem).toBe(null);
  });

  test('many small parts share one budget', async () => {
    const doc = withBlob({});
    for (let i = 0; i < 20; i++) {
      doc.blobs[`0123456789abcd${i + 10}`] = pack({
        text: String(i) + 'y'.repeat(AUTOMATIC / 8),
        lines: [0],
      });
    }
    const store = new Store(doc, saved);
    const found: unknown[] = [];
    for (let i = 0; i < 20; i++) {
      found.push(await store.listing(`0123456789abcd${i + 10}`));
    }
    expect(found.filter(Boolean).length).toBe(7);
    expect(store.problem?.asks).toBe(true);
  });

  test('differences that double their base at each step stay within the budget', async () => {
    const name = (i: number): string => i.toString(16).padStart(16, '0');
    const text = Array<string>(8).fill('x'.repeat(10_000)).join('\n');
    const numbers = Array<number>(8).fill(-1);
    const blobs: Record<string, string> = { [name(0)]: pack({ text, lines: numbers, ops: numbers }) };
    for (let i = 1; i < 60; i++) {
      const all = [0, Math.min(8 * 2 ** (i - 1), 2_000_000)];
      blobs[name(i)] = `${pack([all, all])} ${name(i - 1)}`;
    }
    const store = new Store(withBlob(blobs), saved);
    expect(await store.listing(name(59))).toBe(null);
    expect(store.problem?.text).toContain('large');
  });

  test.each([
    ['itself', { [HASH]: `${pack([[0, 1]])} ${HASH}` }],
    ['another one and back', { [HASH]: `${pack([[0, 1]])} ${OTHER}`, [OTHER]: `${pack([[0, 1]])} ${HASH}` }],
  ])('a difference to %s is a problem and no wait without end', async (_, blobs) => {
    const store = new Store(withBlob(blobs), saved);
    expect(await store.listing(HASH)).toBe(null);
    expect(store.problem?.text).toContain('circle');
  });

  test.each([
    ['no base64', '%%%'],
    ['no gzip', btoa('text')],
    ['a truncated file', pack({ text: 'abc', lines: [0] }).slice(0, 20)],
    ['no JSON', gzipSync('{').toString('base64')],
    ['another type', pack({ text: 3, lines: [] })],
    ['too few lines', pack({ text: 'a\nb', lines: [0] })],
    ['ops of another length', pack({ text: 'a\nb', lines: [0, 0], ops: [1] })],
    ['lines that are no numbers', pack({ text: 'a', lines: ['<img src=x onerror=pwned=1>'] })],
    ['deep nesting', gzipSync('['.repeat(200_000)).toString('base64')],
    ['a difference without a base', `${pack([[0, 1]])} ${OTHER}`],
    ['a range outside', `${pack([[5, 2]])} ${OTHER}`],
  ])('a text with %s is a problem of the card, which shows the rest', async (_, packed) => {
    const { root, open } = shown(withBlob({ [HASH]: packed }));
    const notice = root.querySelector<HTMLElement>('.bnb-notice')!;
    await until(() => !notice.hidden);
    expect(notice.textContent).toContain('cannot be shown');
    expect(open('resources').textContent).toContain('registers');
  });

  test('a card asks before it shows a large text, and shows it after a click', async () => {
    const text = `// ${'z'.repeat(AUTOMATIC)}`;
    const doc = withBlob({ [HASH]: pack({ text, lines: [0], ops: [-1] }) });
    const { root } = shown(doc);
    const notice = root.querySelector<HTMLElement>('.bnb-notice')!;
    const ask = await until(() => notice.querySelector('button'));
    expect(MOST).toBeGreaterThan(text.length);
    ask!.click();
    await until(() => notice.hidden);
  });
});

describe('documents', () => {
  test.each(['scale', 'versions', 'diff', 'bench'] as Name[])(
    'the document %s of a real kernel is accepted',
    (name) => {
      expect(problemOf(fixture(name))).toBe('');
    },
  );

  test.each<[string, (doc: Document) => unknown, string]>([
    ['a list', () => [], 'object'],
    ['a fact of another shape', (doc) => ({ ...doc, facts: [['a', { toString: 'x' }]] }), 'facts[0][1]'],
    ['a blob under the name of a method', (doc) => ({ ...doc, blobs: { constructor: 'x' } }), 'blobs'],
    [
      'a launch without a grid',
      (doc) => ({ ...doc, launches: [{ ...doc.launches[0], grid: null }] }),
      'grid',
    ],
    [
      'an infinite time',
      (doc) => ({
        ...doc,
        launches: [{ ...doc.launches[0], time: { ...doc.launches[0].time, median: Infinity } }],
      }),
      'median',
    ],
    ['a million views', (doc) => ({ ...doc, views: Array(1e6).fill(doc.views[0]) }), 'views'],
  ])('%s is rejected with the place', (_, change, place) => {
    const changed = change(fixture('scale'));
    expect(readable(changed)).toBe(false);
    expect(problemOf(changed)).toContain(place);
  });

  test('a view that throws says so, and the other views work', () => {
    const doc = fixture('scale');
    Object.defineProperty(doc, 'knobs', {
      get(): never {
        throw new Error('broken');
      },
    });
    const place = document.createElement('div');
    expect(() => mount(place, doc, saved)).toThrow('broken'); // the renderer then shows the static HTML
    expect(place.childElementCount).toBe(0);
  });
});

test('the comparison of two long texts takes a time that grows with their length only', () => {
  const listing = (seed: number): Listing => {
    const below = random(seed);
    const lines = Array.from({ length: 20_000 }, () => `%${below(50)} = add %${below(50)}`);
    return { text: lines.join('\n'), lines: lines.map(() => 0), ops: lines.map(() => -1) };
  };
  const begin = process.cpuUsage();
  const found = difference(listing(1), listing(2), true);
  expect(found.hunks.length).toBeGreaterThan(1000);
  expect(process.cpuUsage(begin).user / 1000).toBeLessThan(LIMIT_MS); // 123 s before the pairs of all hunks shared one map
});

// ---- mutations -----------------------------------------------------------------------------------------------------------

const HTML = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>';
const VALUES: unknown[] = [
  null, true, false, 0, -1, 1, 2 ** 31, 2 ** 53, -(2 ** 40), 0.5, 1e300, 1e-300, '', HTML, 'javascript:window.pwned=3', '__proto__',
  'constructor', 'x'.repeat(10_000), [], {}, [[]], [null], { length: 5 }, { toString: null }, [[0, 1e9]], ['a', 'b'], [HTML],
]; // prettier-ignore

type Json = Record<string, unknown> | unknown[];

/** All containers of a value, with the keys of each. */
function containers(value: unknown, found: Json[] = []): Json[] {
  if (typeof value === 'object' && value !== null) {
    found.push(value as Json);
    Object.values(value).forEach((one) => containers(one, found));
  }
  return found;
}

/** Changes a few random places of a value. */
function mutate(value: unknown, below: (n: number) => number): void {
  for (let times = 1 + below(4); times > 0; times--) {
    const all = containers(value);
    const at = all[below(all.length)] as Record<string, unknown>;
    const keys = Object.keys(at);
    const key = keys.length ? keys[below(keys.length)] : 'x';
    const old = at[key];
    switch (below(6)) {
      case 0:
        if (Array.isArray(at)) {
          at.splice(below(at.length + 1), 1);
        } else {
          delete at[key];
        }
        break;
      case 1: // a value of another place
        at[key] = structuredClone(Object.values(all[below(all.length)])[0] ?? null);
        break;
      case 2:
        at[key] = typeof old === 'number' ? [old + 1, -old, old * 1e6, old + 0.5][below(4)] : old;
        break;
      case 3:
        at[key] = typeof old === 'string' ? HTML + old : [old, old];
        break;
      default:
        at[key] = structuredClone(VALUES[below(VALUES.length)]);
    }
  }
}

/** A mutated document: of itself, or of one of its packed parts. */
function mutated(seed: number): unknown {
  const below = random(seed * 7919 + 1);
  const doc = fixture((['scale', 'versions', 'diff', 'bench'] as const)[below(4)]);
  const where = below(4);
  if (where === 0) {
    mutate(doc, below);
  } else if (where === 1 && Object.keys(doc.blobs).length) {
    const hash = Object.keys(doc.blobs)[below(Object.keys(doc.blobs).length)];
    const [, base] = doc.blobs[hash].split(' ');
    const content = { root: unpack(doc.blobs[hash]) };
    mutate(content, below);
    doc.blobs[hash] = pack(content.root) + (base ? ` ${base}` : '');
  } else {
    const part = doc[where === 2 ? 'tiles' : 'timeline'];
    if (part?.packed) {
      const content = { root: unpack(part.packed) };
      mutate(content, below);
      part.packed = pack(content.root);
    } else {
      mutate(doc.views.length ? doc.views : doc, below);
    }
  }
  return doc;
}

const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

/** Mounts a document, opens each tab, and uses what is in it. Returns whether the document was accepted. */
async function use(doc: unknown): Promise<boolean> {
  if (!readable(doc)) {
    return false;
  }
  const { root, card } = shown(doc);
  for (const tab of root.querySelectorAll<HTMLElement>('[role=tab]')) {
    tab.click();
    for (let i = 0; i < 4; i++) {
      await pause();
    }
    const panel = document.getElementById(tab.getAttribute('aria-controls')!)!;
    for (const element of [
      ...panel.querySelectorAll<HTMLElement>('button, [data-op], [data-span], [role=option], tr, rect'),
    ].slice(0, 10)) {
      element.dispatchEvent(new Event('pointerover', { bubbles: true }));
      element.dispatchEvent(new MouseEvent('click', { bubbles: true }));
    }
    for (const select of panel.querySelectorAll('select')) {
      select.selectedIndex = select.options.length - 1;
      select.dispatchEvent(new Event('change', { bubbles: true }));
    }
    panel.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }));
    await pause();
  }
  expect(
    root.querySelector(
      'script, img:not(.cm-widgetBuffer), iframe, object, embed, [onerror], a[href^="javascript"]',
    ),
  ).toBe(null);
  card.update(doc);
  await pause();
  card.dispose();
  return true;
}

describe('mutations of documents', () => {
  const accepted: boolean[] = [];

  test.each([...Array(MUTATIONS).keys()].map((i) => FIRST + i))(
    'number %i does no harm',
    { timeout: 300_000 },
    async (seed) => {
      const begin = process.cpuUsage();
      uncaught.length = 0;
      accepted.push(await use(mutated(seed)));
      await pause();
      expect(uncaught).toEqual([]);
      expect((window as unknown as { pwned?: number }).pwned).toBe(undefined);
      const { user, system } = process.cpuUsage(begin);
      expect((user + system) / 1000).toBeLessThan(LIMIT_MS);
    },
  );

  test('some mutations reach the views, and some are rejected', () => {
    expect(accepted.filter(Boolean).length).toBeGreaterThan(MUTATIONS / 4);
    expect(accepted.filter((one) => !one).length).toBeGreaterThan(MUTATIONS / 20);
  });
});
