/** One view without the card: what it shows follows named values, and a click reports them. Compositions of views. */

import { describe, expect, test, vi } from 'vitest';

import { problemOf, readable } from '../src/core/documents';
import { mountComposed } from '../src/core/mount_composed';
import { mountView, type ViewState } from '../src/core/mount_view';
import { type Composed, type Document, MIME } from '../src/core/schema';
import { fixture, saved, until } from './fixtures';
import tilesFixture from './fixtures/tiles.json';

const tiles = (): Document => structuredClone(tilesFixture.transposed) as unknown as Document;

function single(key: string, doc: Document, state: Partial<ViewState> = {}) {
  const place = document.createElement('div');
  document.body.replaceChildren(place);
  const told = vi.fn<(state: Partial<ViewState>) => void>();
  const view = mountView(place, key, doc, saved, state, told);
  const all = (): Partial<ViewState> => Object.assign({}, ...told.mock.calls.map(([one]) => one));
  return { place, view, told, all };
}

const sides = (place: Element) => [...place.querySelectorAll('.bnb-sides span')].map((s) => s.textContent);
const stageNames = (doc: Document) => doc.views.find((v) => v.target?.startsWith('sm_'))!.stages!;

describe('a view for a widget', () => {
  test('a diff shows the stage and the one before, and follows both names and the number', async () => {
    const doc = fixture('scale');
    const names = stageNames(doc).map((stage) => stage.name);
    const { place, view, all } = single('diff', doc, { stage: names[2] });
    await until(() => sides(place).join() === `IR after ${names[1]},IR after ${names[2]}`);
    expect(all()).toMatchObject({ stage: names[2], stage_index: 2 });
    view.show({ stage_index: 4 });
    await until(() => sides(place).join() === `IR after ${names[3]},IR after ${names[4]}`);
    expect(all()).toMatchObject({ stage: names[4], stage_index: 4 });
    view.show({ compared_with: names[0] });
    await until(() => sides(place)[0] === `IR after ${names[0]}`);
    view.show({ compared_with: null, stage: 'no such stage' });
    await until(() => sides(place)[0] !== `IR after ${names[0]}`);
    view.dispose();
    expect(place.children.length).toBe(0);
  });

  test('a choice in the view reports the stages', async () => {
    const doc = fixture('scale');
    const names = stageNames(doc).map((stage) => stage.name);
    const { place, all } = single('diff', doc);
    const select = place.querySelector<HTMLSelectElement>('[aria-label=Stage]')!;
    await until(() => select.options.length);
    select.value = names[1];
    select.dispatchEvent(new Event('change'));
    expect(all()).toMatchObject({ stage: names[1], stage_index: 1 });
  });

  test('a line highlights its code; a line set by a widget is not reported back', async () => {
    const doc = fixture('scale');
    const { place, view, told } = single('code', doc);
    await until(() => place.querySelectorAll('.cm-line').length > 5);
    told.mockClear();
    const line = doc.views[0].stages![0].notes[0]?.line ?? doc.source.first_line + 3;
    view.show({ line });
    await until(() => place.querySelector('.bnb-highlight'));
    expect(told).not.toHaveBeenCalled();
    view.show({ line: null });
    await until(() => !place.querySelector('.bnb-highlight'));
  });

  test('an op alone highlights its line, too', async () => {
    const doc = fixture('scale');
    const { place, view } = single('code', doc);
    await until(() => place.querySelectorAll('.cm-line').length > 5);
    view.show({ op: stageNames(doc)[0].made[1] });
    const source = place.querySelector('[aria-label="Source of the kernel"]')!;
    await until(() => source.querySelectorAll('.bnb-highlight').length === 1);
  });

  test('a click on an access reports its op and line; an op of a widget chooses the access', async () => {
    const { place, view, all } = single('tiles', tiles());
    const rows = () => [...place.querySelectorAll<HTMLElement>('.bnb-stage')];
    await until(() => rows().length > 1);
    rows()[1].click();
    const { op, line } = all();
    expect(line).toBeGreaterThan(0);
    rows()[0].click();
    expect(all().op === op && all().line === line).toBe(false);
    view.show({ op: op ?? null, line: line ?? null });
    await until(() => rows()[1].getAttribute('aria-selected') === 'true');
  });

  test('a saved program is shown on request, and reported; one that is not saved is not', async () => {
    const { place, view, all } = single(
      'tiles',
      structuredClone(tilesFixture.matmul_kernel) as unknown as Document,
    );
    await until(() => place.textContent!.includes('Saved programs: '));
    const other = Number(/Saved programs: \d+, (\d+)/.exec(place.textContent!)![1]);
    expect(all()).toEqual({}); // a default is not reported
    view.show({ program: other });
    const name = () => place.querySelector('.bnb-program-name')!.textContent;
    expect(name()).toContain(`program ${other} `);
    view.show({ program: 10 ** 6 });
    expect(name()).toContain(`program ${other} `);
    expect(all()).toMatchObject({ program: other, iteration: 0 }); // so the trait says what is shown
    expect(place.textContent).toContain(`Program ${10 ** 6} is not saved. Saved programs: `);
  });

  test('a view begins with the program that is asked for, and reports no other one', async () => {
    const doc = structuredClone(tilesFixture.matmul_kernel) as unknown as Document;
    const { place, told } = single('tiles', doc, { program: 1 });
    await until(() => place.textContent!.includes('program 1 '));
    expect(told.mock.calls.some(([one]) => one.program === 0)).toBe(false);
  });

  test('another document updates the view in place and keeps the stage', async () => {
    const doc = fixture('scale');
    const names = stageNames(doc).map((stage) => stage.name);
    const { place, view } = single('diff', doc, { stage: names[3] });
    await until(() => sides(place)[1] === `IR after ${names[3]}`);
    const root = place.firstChild;
    view.update(fixture('versions'));
    await until(() => view.document.version === fixture('versions').version);
    expect(place.firstChild).toBe(root);
    expect(sides(place)[1]).toBe(`IR after ${names[3]}`);
  });

  test('a view without content says why, and opens when a document has some', async () => {
    const { place, view } = single('tiles', { ...tiles(), tiles: { why: 'because' } });
    expect(place.querySelector('.bnb-empty')!.textContent).toBe('because');
    view.update(tiles());
    await until(() => place.querySelectorAll('.bnb-stage').length > 1);
    const unknown = single('no-such-view', fixture('scale'));
    expect(unknown.place.textContent).toContain('does not have the view “no-such-view”');
  });

  test('the whole card is a view, too', async () => {
    const { place, view, all } = single('card', fixture('scale'), {
      target: fixture('scale').views[0].target,
    });
    place.querySelector<HTMLElement>('[role=tab][data-key=passes]')!.click();
    const row = [...place.querySelectorAll<HTMLElement>('.bnb-stage')][1];
    row.click();
    expect(all()).toMatchObject({ stage_index: 1, compared_with: null });
    const last = [...place.querySelectorAll<HTMLElement>('.bnb-target')].pop()!;
    last.click();
    expect(all().target).toBe(fixture('scale').views.slice(-1)[0].target);
    view.dispose();
  });
});

describe('a composition', () => {
  const empty = { ...fixture('scale'), views: [], blobs: {}, launches: [], kind: 'widget' };
  const compose = (root: Composed, documents = [fixture('scale')]): Document => ({
    ...empty,
    widget: { model: 'm', root, documents },
  });
  const view: Composed = { view: 'diff', document: 0, model: 'd', state: { stage: 'coalesce' } };

  test('shows views in rows and columns and the words of other widgets', async () => {
    const doc = compose({
      box: 'column',
      children: [{ text: 'n: <b>3' }, { png: 'iVBORw0=' }, { box: 'row', children: [view, view] }],
    });
    expect(problemOf(doc)).toBe('');
    const place = document.createElement('div');
    const remove = mountComposed(place, doc.widget!, saved);
    await until(() => place.querySelectorAll('.bnb-composed-row .bnb-single').length === 2);
    await until(() => sides(place).filter((label) => label === 'IR after coalesce').length === 2);
    expect(place.querySelector('.bnb-composed-text')!.textContent).toBe('n: <b>3');
    expect(place.querySelector('img')!.src).toBe('data:image/png;base64,iVBORw0=');
    remove();
    expect(place.children.length).toBe(0);
  });

  test('an exported page shows it, not an empty card', async () => {
    const script = document.createElement('script');
    script.type = MIME;
    script.textContent = JSON.stringify(compose(view));
    document.body.replaceChildren(script);
    vi.stubGlobal('matchMedia', () => ({ matches: false, addEventListener: () => {} }));
    await import('../src/standalone');
    await until(() => sides(document.body).includes('IR after coalesce'));
    expect(document.querySelector('.bnb-tabs')).toBeNull();
    vi.unstubAllGlobals();
  });

  test.each<[string, unknown]>([
    ['a document that is not there', { ...view, document: 1 }],
    ['a negative document', { ...view, document: -1 }],
    ['a state that is an object', { ...view, state: { stage: {} } }],
    ['a box of another kind', { box: 'script', children: [] }],
    ['a text that is a number', { text: 3 }],
    ['a picture that is no base64', { png: 'x" onerror="alert(1)' }],
    ['nothing', null],
  ])('with %s is refused', (_, root) => {
    expect(readable(compose(root as Composed))).toBe(false);
  });

  test('is refused if it is deep or if a document in it is a composition', () => {
    let deep: Composed = { text: '' };
    for (let i = 0; i < 1000; i++) {
      deep = { box: 'row', children: [deep] };
    }
    expect(readable(compose(deep))).toBe(false);
    expect(problemOf(compose(view, [compose(view)]))).toContain('inside of another one');
  });
});
