/** What the user has chosen stays when the card shows another document, and a view that is gone hears nothing more. */

import { gzipSync } from 'node:zlib';

import { beforeAll, expect, test, vi } from 'vitest';

import type { Host } from '../src/core/host';
import { mount } from '../src/core/mount';
import { mountView } from '../src/core/mount_view';
import type { Document, Question, Sweep } from '../src/core/schema';
import { Store } from '../src/core/store';
import { code } from '../src/core/views/code';
import { passes } from '../src/core/views/passes';
import type { ViewSpec } from '../src/core/views/spec';
import { tiles } from '../src/core/views/tiles';
import { stageDiff } from '../src/core/stage_diff';
import { fixture, saved, shown, until } from './fixtures';
import tilesFixture from './fixtures/tiles.json';

const text = (element: Element | null): string => element?.textContent ?? '';
const press = (element: Element, key: string): void =>
  void element.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
const options = (panel: Element): HTMLSelectElement[] => [...panel.querySelectorAll('select')];

function choose(select: HTMLSelectElement, value: string): void {
  select.value = value;
  select.dispatchEvent(new Event('change'));
}

const SWEPT: Sweep = {
  axis: 'n',
  values: [1, 2, 4, 8],
  unit: 'GB/s',
  amounts: [1, 2, 4, 8],
  series: ['softmax', 'numpy'].map((label) => ({
    label,
    kind: 'kernel',
    median: [1, 2, 3, 4],
    low: [1, 2, 3, 4],
    high: [1, 2, 3, 4],
  })),
};

beforeAll(() => {
  HTMLCanvasElement.prototype.getContext = () => null; // jsdom draws nothing
});

test('the controls of a sweep say what its plot shows, also after another document', () => {
  const doc = { ...fixture('scale'), sweep: SWEPT };
  const { card, open } = shown(doc);
  const panel = open('sweep');
  const wanted = ['time', 'linear', 'log'];
  options(panel).forEach((select, i) => choose(select, wanted[i]));
  card.update(structuredClone(doc));
  expect(options(panel).map((select) => select.value)).toEqual(wanted);
  expect(panel.querySelector('.bnb-plot')!.getAttribute('aria-label')).toContain('s over n');
});

test('the series of a sweep over two parameters stays chosen', () => {
  const second = { axis: 'm', values: [1] };
  const doc = { ...fixture('scale'), sweep: { ...SWEPT, second } };
  const { card, open } = shown(doc);
  const panel = open('sweep');
  choose(options(panel)[1], 'numpy');
  card.update(structuredClone(doc));
  expect(options(panel)[1].value).toBe('numpy');
  expect(panel.querySelector('.bnb-plot')!.getAttribute('aria-label')).toContain('numpy');
});

test('the Passes view stays at its passes if another document has others before them', async () => {
  const doc = fixture('scale');
  const { card, open } = shown(doc);
  const panel = open('passes');
  press(panel, 'j');
  press(panel, 'j');
  press(panel, 'd');
  const chosen = (): string => text(panel.querySelector('[aria-selected=true] .bnb-stage-name'));
  const base = (): string =>
    text(panel.querySelector<HTMLSelectElement>('[aria-label="Compare with"]')!.selectedOptions[0]);
  const before = [chosen(), base().split(' ')[0]];
  const next = structuredClone(doc);
  next.views.forEach((view) => view.stages?.splice(1, 1));
  card.update(next);
  expect([chosen(), base().split(' ')[0]]).toEqual(before);
  next.views.forEach((view) => (view.stages = view.stages?.filter(({ name }) => name !== before[1])));
  card.update(structuredClone(next));
  expect([chosen(), base()]).toEqual([before[0], 'nothing']); // the pass to compare with is gone
});

test('the History view keeps the versions and the level that the user chose', async () => {
  const doc = fixture('versions');
  const { card, open } = shown(doc);
  const panel = open('history');
  const radios = (): HTMLInputElement[] => [...panel.querySelectorAll<HTMLInputElement>('[type=radio]')];
  const picked = (): boolean[] => radios().map((one) => one.checked);
  const before = picked();
  radios()[1].click(); // the first version on the right
  radios()[2].click();
  const chosen = picked();
  expect(chosen).not.toEqual(before);
  const level = panel.querySelector<HTMLSelectElement>('[aria-label="What to compare"]')!;
  choose(level, level.options[1].value);
  card.update(structuredClone(doc));
  expect(picked()).toEqual(chosen);
  expect(level.selectedIndex).toBe(1);
});

test('the comparison of machine code in the History view follows its switches and stops listening when it goes', async () => {
  const side = { label: 'one', kernel: 'scale', target: 'sm_90a', constants: {}, options: {}, first_line: 1 };
  const resources = {
    registers: null,
    spill_bytes: null,
    stack_bytes: null,
    shared_bytes: null,
    threads: null,
  };
  const sides = ['one', 'two'].map((label) => ({
    ...side,
    label,
    resources,
    source: null,
    levels: [],
    time: null,
  }));
  const compare = { sides, packed: gzipSync('[]').toString('base64') } as unknown as Document['compare'];
  const request = vi.fn().mockResolvedValue({ document: { ...fixture('scale'), kind: 'compare', compare } });
  const listening = new Set<object>();
  const onSourceLine = (listener: (line: number | null) => void): (() => void) => {
    listening.add(listener);
    return () => listening.delete(listener);
  };
  const { open } = shown(fixture('versions'), { ...saved, state: 'live', request, onSourceLine });
  const panel = open('history');
  const before = listening.size;
  [...panel.querySelectorAll('button')].find((one) => text(one).startsWith('Compare LLVM'))!.click();
  await until(() => listening.size === before + 1);
  const unified = (): HTMLElement =>
    panel.querySelector('[aria-label=Sides] ~ .bnb-tools [data-display=unified]')!;
  const pressed = unified().getAttribute('aria-pressed');
  unified().click();
  expect(unified().getAttribute('aria-pressed')).not.toBe(pressed);
  unified().click();
  const level = panel.querySelector<HTMLSelectElement>('[aria-label="What to compare"]')!;
  choose(level, level.options[1].value);
  await until(() => listening.size === before);
});

test('a page of two versions that cannot be shown is told', async () => {
  const request = vi.fn().mockResolvedValue({ document: { schema: 'no' } });
  const panel = shown(fixture('versions'), { ...saved, state: 'live', request }).open('history');
  [...panel.querySelectorAll('button')].find((one) => text(one).startsWith('Compare LLVM'))!.click();
  await until(() => panel.textContent!.includes('The kernel has sent a page that this version cannot show.'));
});

test('an answer that the learner types stays when the card gets its other parts or another connection', async () => {
  const question: Question = {
    name: 'predict-blocks',
    title: 'How many programs?',
    question: 'How many?',
    reveals: [],
    closed: [],
    answer: '',
    right: false,
    text: '',
  };
  const doc: Document = { ...fixture('learn'), question };
  const first = vi.fn();
  const { card, root } = shown(doc, { ...saved, state: 'live', request: first });
  const field = root.querySelector<HTMLInputElement>('.bnb-answer')!;
  field.value = '9, 24';
  card.update(structuredClone(doc));
  const second = vi
    .fn()
    .mockResolvedValue({ document: { ...doc, question: { ...question, answer: '9, 24' } } });
  card.connect({ ...saved, state: 'live', request: second });
  expect(root.querySelector('.bnb-answer')).toBe(field);
  root.querySelector<HTMLFormElement>('.bnb-answer-form')!.requestSubmit();
  await until(() => text(root.querySelector('.bnb-question [role=status]')).includes('9, 24'));
  expect(second).toHaveBeenCalledWith('predict', { answer: '9, 24' });
  expect(first.mock.calls.filter(([what]) => what === 'predict')).toEqual([]);
});

test('what the kernel answered for an older document is not shown for the new one', async () => {
  const doc = structuredClone(tilesFixture.matmul_kernel) as unknown as Document;
  const answers: ((answer: unknown) => void)[] = [];
  const request = vi.fn(() => new Promise<unknown>((resolve) => answers.push(resolve)));
  const panel = document.body.appendChild(document.createElement('div'));
  const store = new Store(doc, { state: 'live', request });
  const view = tiles.mount(panel, store);
  store.subscribe((change) => view.update(change));
  await until(() => panel.querySelector('[data-op]'));
  const missing = 7; // the document has others
  store.shown.ask({ program: missing });
  await until(() => answers.length === 1);
  store.update(structuredClone(doc));
  await until(() => answers.length === 2); // the new document asks again
  answers[0]({ accesses: { 74: { why: 'of the older document' } } });
  await new Promise((resolve) => setTimeout(resolve, 20));
  const painted = (): string => text(panel.querySelector('.bnb-program-name')) + text(panel);
  expect(painted()).not.toContain('of the older document');
  store.shown.ask({ program: 0 });
  store.shown.ask({ program: missing });
  expect(request.mock.calls.length).toBe(3); // the older answer was not kept either
});

test('a request does not keep a new document from being shown', async () => {
  const doc = structuredClone(tilesFixture.matmul_kernel) as unknown as Document;
  const request = vi.fn(() => new Promise<unknown>(() => undefined));
  const panel = document.body.appendChild(document.createElement('div'));
  const store = new Store(doc, { state: 'live', request });
  const view = tiles.mount(panel, store);
  store.subscribe((change) => view.update(change));
  await until(() => panel.querySelector('[data-op]'));
  store.update(structuredClone(tilesFixture.transposed) as unknown as Document); // is being unpacked
  view.advance!(1);
  view.advance!(1);
  view.advance!(1);
  expect(request).toHaveBeenCalled();
  const rows = (): number => panel.querySelectorAll('[data-op]').length;
  const before = rows();
  await until(rows, (count) => count !== before);
});

test('a view that is disposed of hears no more of a widget’s traits', async () => {
  const doc = fixture('scale');
  for (const spec of [code, passes, tiles, stageDiff] as ViewSpec[]) {
    const store = new Store(doc, saved);
    const listeners = vi.spyOn(store.shown, 'onAsk');
    const view = spec.mount(document.createElement('div'), store);
    const stops = listeners.mock.results.map(({ value }) => value as () => boolean);
    expect(stops.length, spec.key).toBeGreaterThan(0);
    view.dispose!();
    expect(
      stops.map((stop) => stop()),
      spec.key,
    ).toEqual(stops.map(() => false)); // gone before
  }
});

test('the switches of a widget’s view show the settings of the listings, which change nothing else', async () => {
  const place = document.createElement('div');
  document.body.replaceChildren(place);
  const view = mountView(place, 'passes', fixture('scale'), saved, {}, () => {});
  await until(() => place.querySelector('.cm-content'));
  const list = place.querySelector('[data-stage]');
  const wrap = place.querySelector<HTMLElement>('[data-display=wrap]')!;
  wrap.click();
  expect(wrap.getAttribute('aria-pressed')).toBe('false');
  expect(place.querySelector('[data-stage]')).toBe(list); // the view did not begin again
  wrap.click();
  expect(wrap.getAttribute('aria-pressed')).toBe('true');
  view.dispose();
});

test('a link that cannot be copied is shown instead', async () => {
  const link = (): string => 'https://here/lab?blocknb=v1;code';
  const host: Host = { ...saved, link, copy: () => Promise.reject(new Error('denied')) };
  const place = document.createElement('div');
  mount(place, fixture('scale'), host);
  const said = (): string => text(place.querySelector('.bnb-share [role=status]'));
  const copy = [...place.querySelectorAll('button')].find((one) => text(one) === 'Copy link')!;
  copy.click();
  await until(said);
  expect(said()).toBe('The link cannot be copied (denied): https://here/lab?blocknb=v1;code');
});
