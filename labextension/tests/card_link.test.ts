import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { readTarget, targetText } from '../src/core/link_target';
import { mount } from '../src/core/mount';
import { Store } from '../src/core/store';
import { findStage } from '../src/core/views/stage_link';
import type { Stage } from '../src/core/schema';
import { fixture, saved, shown, until } from './fixtures';

const page = HTMLCanvasElement.prototype;
const getContext = page.getContext;
beforeAll(() => void (page.getContext = () => null));
afterAll(() => void (page.getContext = getContext));

const notice = (root: HTMLElement): string =>
  root.querySelector<HTMLElement>('.bnb-link-notice')!.hidden
    ? ''
    : root.querySelector('.bnb-link-notice span')!.textContent!;

/** Shows a link in a fresh card, and returns the card once `ready` holds. */
async function followed(name: 'scale' | 'learn', text: string, ready: (root: HTMLElement) => unknown) {
  const card = shown(fixture(name));
  card.card.open(readTarget(text));
  await until(() => ready(card.root));
  return card;
}

describe('the text of a link', () => {
  test('has a version, a tab, and parts, and reads back also where a program has escaped it', () => {
    const target = { tab: 'step', parts: { step: '3', value: 'größe.5' } };
    const text = targetText(target);
    expect(text).toBe('v1;step;step:3;value:gr%C3%B6%C3%9Fe.5');
    expect(readTarget(text)).toEqual(target);
    expect(readTarget(text.replaceAll(';', '%3B').replaceAll(':', '%3A'))).toEqual(target);
    expect(readTarget('passes.coalesce')).toEqual({ tab: 'passes', parts: { pass: 'coalesce' } });
    expect(readTarget('v2;code;new:1')).toEqual({ tab: 'code', parts: { new: '1' }, newer: true });
  });

  test.each(['v1', 'v1;', 'v1;a b', 'v1;code;line', 'v1;code;line:', 'v1;code;x:%zz', `v1;code;x:${'y'.repeat(101)}`])(
    '%s is none',
    (text) => expect(readTarget(text)).toBeNull(),
  ); // prettier-ignore
});

test('a pass is found by its name, then by its place', () => {
  const stages = ['parse', 'simplify', 'unroll', 'simplify'].map((name) => ({ name }) as Stage);
  const said: string[] = [];
  const find = (text: string): number => findStage(stages, text, (sentence) => said.push(sentence));
  expect(['simplify', 'simplify.1', 'simplify.3', 'simplify.9', 'unroll.0'].map(find)).toEqual([
    1, 1, 3, 3, 2,
  ]);
  expect(said).toEqual([]);
  expect([find('gone.2'), find('gone.77'), find('gone')]).toEqual([2, 3, 0]);
  expect(said[0]).toBe('There is no pass gone; the pass at its place is unroll');
  expect(findStage([], 'parse.0', () => {})).toBe(-1);
});

describe('a link shows the state that it was made from:', () => {
  const states: [name: 'scale' | 'learn', link: string][] = [
    ['scale', 'v1;passes;target:sm_90a;pass:pointers.3;with:parse.0;line:7'],
    ['scale', 'v1;passes;target:sm_90a;pass:pointers.3;op:17'],
    ['scale', 'v1;code;target:sm_90a;middle:pointers.3;right:llvm;line:5'],
    ['scale', 'v1;resources;target:sm_90a'],
    ['scale', 'v1;resources;target:cpu%3Arocketlake'],
    ['scale', 'v1;tiles;target:sm_90a;access:1;program:0;show:lane'],
    ['learn', 'v1;launch;target:sm_90a;by:program;step:2'],
    ['learn', 'v1;step;target:sm_90a;program:0;compare:3;step:4;value:at.5'],
    ['learn', 'v1;step;target:sm_90a;program:0;compare:3;step:4;value:at.5.compare'],
    ['learn', 'v1;footprint;target:sm_90a;map:1'],
    ['scale', 'v1;history;target:sm_90a;projector:on'],
  ];

  test.each(states)('%s %s', async (name, link) => {
    const { card, root } = shown(fixture(name));
    card.open(readTarget(link));
    await until(
      () => targetText(card.now()),
      (text) => text === link,
    );
    expect(notice(root)).toBe('');
    card.dispose();
  });
});

describe('a stale link leads to the nearest state, and says so:', () => {
  test('a pass that is gone, and a line that the source does not have', async () => {
    const { root, card } = await followed('scale', 'v1;passes;pass:gone.3;line:99', (found) => notice(found));
    expect(root.querySelector('.bnb-stage[aria-selected=true]')!.getAttribute('data-name')).toBe('pointers');
    expect(notice(root)).toBe(
      'There is no pass gone; the pass at its place is pointers. The source has no line 99. ',
    );
    root.querySelector<HTMLElement>('.bnb-link-notice button')!.click();
    expect(notice(root)).toBe('');
    card.dispose();
  });

  test.each([
    ['v1;nothing', 'This card has no tab “nothing”. '],
    ['v1;code;target:sm_10', 'There is no code for sm_10. '],
    ['v1;code;op:4000', 'There is no op 4000. '],
    ['v1;passes;target:sm_90a;pass:parse.0;op:17', 'There is no op 17. '], // a later pass creates it
    ['v1;;', 'The link does not name a state of a card. '],
    ['v7;code', 'The link comes from a newer version of blocknb, so it may say more than this page shows. '],
  ])('%s', async (link, said) => {
    const { root, card } = await followed('scale', link, (found) => notice(found));
    expect(notice(root)).toBe(said);
    expect(root.querySelector('[role=tab][aria-selected=true]')).not.toBeNull();
    card.dispose();
  });

  test('a step that the launch does not have', async () => {
    const { root, card } = await followed('learn', 'v1;launch;by:program;step:400', (found) => notice(found));
    expect(notice(root)).toBe('There is no step 400. ');
    expect(card.now().parts).toMatchObject({ by: 'program', step: '3' });
    card.dispose();
  });

  test('a program that the saved card does not have', async () => {
    const { root, card } = await followed('learn', 'v1;step;program:2;step:1', (found) => notice(found));
    expect(notice(root)).toBe('The values of program 2 are not saved. ');
    card.dispose();
  });
});

test('a live card asks the kernel once for a program that a link names', async () => {
  const asked: unknown[] = [];
  const request = (what: string, content: Record<string, unknown>): Promise<unknown> => {
    asked.push([what, content]);
    return Promise.reject(new Error('the kernel is busy'));
  };
  const { card } = shown(fixture('learn'), { ...saved, state: 'live', request });
  card.open(readTarget('v1;step;program:2;step:1'));
  await until(() => asked.length);
  expect(asked).toEqual([['teach', { part: 'step', programs: [2] }]]);
  card.dispose();
});

test('a link with a line has no op, whose number does not survive a change of the kernel', () => {
  const store = new Store(fixture('scale'), saved);
  const card = mount(document.createElement('div'), store.doc, saved, store);
  store.pin({ lines: [5], op: 3, from: 'test' });
  expect(card.now().parts).toMatchObject({ line: '5' });
  expect(card.now().parts).not.toHaveProperty('op');
  card.dispose();
});

describe('a live card', () => {
  /** A card whose kernel refuses program 2, and answers other requests with the saved programs 0 and 3. */
  function live() {
    const doc = fixture('learn');
    const part = doc.teaching!.step!;
    const asked: unknown[] = [];
    const request = (_: string, { programs }: Record<string, unknown>): Promise<unknown> => {
      asked.push(programs);
      return String(programs) === '2'
        ? Promise.reject(new Error('the kernel is busy'))
        : Promise.resolve({ part, saved: part });
    };
    return { asked, ...shown(doc, { ...saved, state: 'live', request }) };
  }

  test('forgets a link that the kernel refuses, and asks again if the user follows it again', async () => {
    const { asked, card, root } = live();
    card.open(readTarget('v1;step;program:2;step:1'));
    await until(() => root.textContent!.includes('the kernel is busy'));
    const [field, second] = root.querySelectorAll<HTMLInputElement>('.bnb-program-input');
    field.value = '3';
    second.value = '';
    field.dispatchEvent(new Event('change'));
    await until(() => !/Running the program|is busy/.test(root.textContent!));
    expect(notice(root)).toBe('');
    card.open(readTarget('v1;step;program:2;step:1'));
    await until(() => root.textContent!.includes('the kernel is busy'));
    expect(asked).toEqual([[2], [3], [2]]);
    card.dispose();
  });

  test('says once what a link names and the kernel does not have', async () => {
    const { asked, card, root } = live();
    card.open(readTarget('v1;step;program:99'));
    await until(() => notice(root).includes('not saved'));
    expect(notice(root)).toBe('There is no program 99. The values of program 3 are not saved. ');
    expect(asked).toEqual([[3]]);
    card.dispose();
  });
});
