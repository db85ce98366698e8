import { describe, expect, test, vi } from 'vitest';

import type { Document } from '../src/core/schema';
import { fixture, type Name, saved, shown, until } from './fixtures';

const text = (element: Element): string => element.textContent ?? '';
const press = (element: Element, key: string): boolean =>
  element.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));

function choose(select: HTMLSelectElement, value: string): void {
  select.value = value;
  select.dispatchEvent(new Event('change'));
}

describe('the card', () => {
  test('its tabs are one stop, arrows move, and an empty view says why', () => {
    const { root, open } = shown(fixture('versions'));
    const tabs = [...root.querySelectorAll<HTMLElement>('[role=tab]')];
    expect(tabs.filter((tab) => tab.tabIndex === 0).length).toBe(1);
    tabs[0].focus();
    press(tabs[0], 'ArrowRight');
    expect(document.activeElement).toBe(tabs[1]);
    expect(tabs[1].getAttribute('aria-selected')).toBe('true');
    expect(text(open('bench'))).toContain('--baseline');
  });

  test('plain keys stay in the card; Escape, Tab and keys with Ctrl leave it', () => {
    const { root } = shown(fixture('scale'));
    const heard = vi.fn();
    root.addEventListener('keydown', heard);
    const card = root.querySelector('.bnb-card')!;
    press(card, 'b');
    expect(heard).not.toHaveBeenCalled();
    press(card, 'Escape');
    card.dispatchEvent(new KeyboardEvent('keydown', { key: 's', ctrlKey: true, bubbles: true }));
    expect(heard).toHaveBeenCalledTimes(2);
  });

  test('? shows the keys of the open view, and hides them', () => {
    const { root, open } = shown(fixture('scale'));
    const keys = root.querySelector<HTMLElement>('.bnb-keys')!;
    const panel = open('passes');
    press(panel, '?');
    expect(keys.hidden).toBe(false);
    expect(text(keys)).toContain('the next and the previous pass');
    press(panel, '?');
    expect(keys.hidden).toBe(true);
  });

  test.each<Name>(['scale', 'versions', 'diff', 'bench'])(
    'no text of %s becomes markup in any view',
    async (name) => {
      const doc = JSON.parse(
        JSON.stringify(fixture(name)).replaceAll('scale', '<img src=x onerror=alert(1)>'),
      ) as Document;
      const { root } = shown(doc);
      for (const tab of root.querySelectorAll<HTMLElement>('[role=tab]')) {
        tab.click();
        await new Promise((resolve) => setTimeout(resolve, 30));
      }
      expect(root.querySelector('img:not(.cm-widgetBuffer), script')).toBeNull();
      if (name !== 'bench') {
        expect(text(root)).toContain('<img src=x');
      }
    },
  );

  test('a cell that holds another text by now is said', () => {
    const { root, card } = shown(fixture('scale'), { ...saved, cell: 'found' });
    expect(text(root)).not.toContain('changed since');
    card.connect({ ...saved, cell: 'changed' });
    expect(text(root)).toContain('the cell has changed since');
  });

  test('a document that compiled nothing has the views that have something to show', () => {
    const { root } = shown(fixture('bench'));
    expect([...root.querySelectorAll('[role=tab]')].map(text)).toEqual(['Bench']);
    expect(text(root)).toContain('np.sort(x)');
  });
});

describe('passes', () => {
  const rows = (panel: Element): HTMLElement[] => [...panel.querySelectorAll<HTMLElement>('[role=option]')];
  const chosen = (panel: Element): string =>
    text(panel.querySelector('[role=option][aria-selected=true] .bnb-stage-name')!);

  test('each pass is listed; those that changed nothing can be hidden', () => {
    const doc = fixture('scale');
    const panel = shown(doc).open('passes');
    expect(rows(panel).length).toBe(doc.views[1].stages!.length);
    panel.querySelector<HTMLInputElement>('input[type=checkbox]')!.click();
    const kept = doc.views[1].stages!.filter((stage, i) => i === 0 || stage.changed);
    expect(rows(panel).map((row) => text(row.firstElementChild!))).toEqual(kept.map((stage) => stage.name));
  });

  test('j and k go through them, / filters, d compares with the pass before', async () => {
    const panel = shown(fixture('scale')).open('passes');
    press(panel, 'j');
    expect(chosen(panel)).toBe('simplify');
    press(panel, 'd');
    await until(() => panel.querySelector('.cm-mergeView'));
    press(panel, 'k');
    expect(chosen(panel)).toBe('parse');
    press(panel, '/');
    const field = document.activeElement as HTMLInputElement;
    field.value = 'coalesce';
    field.dispatchEvent(new Event('input'));
    expect(rows(panel).map((row) => text(row.firstElementChild!))).toContain('coalesce');
    expect(rows(panel).length).toBeLessThan(4);
  });

  test('the first pass that makes a text is found, and opened beside the pass before', async () => {
    const panel = shown(fixture('scale')).open('passes');
    const field = panel.querySelector<HTMLInputElement>('.bnb-finder input')!;
    field.value = '#a';
    press(field, 'Enter');
    await until(
      () => text(panel.querySelector('.bnb-finder [role=status]')!),
      (said) => said.includes('makes it'),
    );
    const merge = await until(() => panel.querySelector('.cm-mergeView'));
    expect(merge).toBeTruthy();
    expect(text(panel.querySelector('.bnb-summary')!)).toMatch(/^Ops: .*changed/);
    field.value = 'no such text';
    press(field, 'Enter');
    await until(
      () => text(panel.querySelector('.bnb-finder [role=status]')!),
      (said) => said.includes('No pass makes'),
    );
  });

  test('inside a changed line only words are marked, and an op that moved has a sign', async () => {
    const doc = fixture('scale');
    const stages = doc.views[1].stages!;
    const mover = stages.findIndex((stage) => stage.moved.length);
    const panel = shown({ ...doc, show: ['coalesce'] }).open('passes');
    press(panel, 'd');
    const word = await until(() => panel.querySelector('.bnb-word'));
    expect(text(word!).length).toBeLessThan(text(word!.closest('.cm-line')!).length);
    if (mover > 0) {
      rows(panel)[mover].click();
      await until(() => panel.querySelector('.bnb-moved'));
    }
  });
});

describe('code', () => {
  test('the source stands beside IR and PTX, numbered as in the cell', async () => {
    const doc = fixture('scale');
    const panel = shown(doc).open('code');
    await until(
      () => text(panel),
      (all) => all.includes('ld.global') && all.includes('tl.load'),
    );
    expect(panel.querySelectorAll('.bnb-column:not([hidden])').length).toBe(3);
    const numbers = [...panel.querySelectorAll('.bnb-column')[0].querySelectorAll('.cm-gutterElement')].map(
      text,
    );
    expect(numbers).toContain(String(doc.source.first_line));
  });

  test('where the cell is linked its source is hidden until somebody asks for it', () => {
    const host = { ...saved, linkSource: () => {}, cell: 'found' as const };
    const { open, card } = shown(fixture('scale'), host);
    const panel = open('code');
    const column = panel.querySelector<HTMLElement>('.bnb-column')!;
    expect(column.hidden).toBe(true);
    panel.querySelector<HTMLElement>('.bnb-button')!.click();
    expect(column.hidden).toBe(false);
    panel.querySelector<HTMLElement>('.bnb-button')!.click();
    card.connect({ ...host, cell: 'changed' });
    expect(column.hidden).toBe(true); // as the user chose
    const other = shown(fixture('scale'), { ...host, cell: 'changed' }).open('code');
    expect(other.querySelector<HTMLElement>('.bnb-column')!.hidden).toBe(false);
  });

  test('the level that the cell asked for is open', async () => {
    const panel = shown({ ...fixture('scale'), show: ['sass'] }).open('code');
    await until(
      () => text(panel),
      (all) => all.includes('EXIT'),
    );
  });
});

describe('resources', () => {
  test('registers, spills and occupancy stand in a column a target, and a CPU says why it has none', () => {
    const doc = fixture('scale');
    const panel = shown(doc).open('resources');
    const held = doc.views[1].resources!.occupancy!;
    expect(text(panel)).toContain(`${held.percent} % (${held.warps_per_sm} of ${held.max_warps} warps)`);
    expect(text(panel)).toContain('A CPU runs programs one after another');
  });

  test('the limiter and what would change it are named', () => {
    const doc = fixture('scale');
    doc.views[1].resources!.occupancy = {
      blocks_per_sm: 4,
      warps_per_sm: 16,
      max_warps: 64,
      percent: 25,
      limiter: 'registers',
      advice: ['8 registers fewer a thread -> 5 programs an SM (31 %)'],
    };
    const panel = shown(doc).open('resources');
    expect(text(panel)).toContain('Limited by the registers of the SM');
    expect(text(panel)).toContain('8 registers fewer a thread -> 5 programs');
    expect(panel.querySelector('meter')!.value).toBe(16);
  });

  test('a card of a CPU alone says why the view is empty', () => {
    const doc = fixture('scale');
    doc.views = [doc.views[0]];
    expect(text(shown(doc).open('resources'))).toContain('figures of a GPU');
  });
});

test('what was left for later is asked for when a kernel is there, shown and saved', async () => {
  const whole = fixture('scale');
  const doc = fixture('scale');
  delete doc.views[1].code!.sass;
  doc.views[1].later = ['sass'];
  const request = vi.fn().mockResolvedValue({ document: whole });
  const save = vi.fn();
  const { open } = shown({ ...doc, show: ['sass'] }, { ...saved, state: 'live', request, save });
  const panel = open('code');
  await until(
    () => text(panel),
    (all) => all.includes('is being read'),
  );
  await until(
    () => text(panel),
    (all) => all.includes('EXIT'),
  );
  expect(request).toHaveBeenCalledExactlyOnceWith('whole', {});
  expect(save).toHaveBeenCalledWith(whole);
});

test('bench: the kernel, its variants and baselines with medians, spread and ratios', () => {
  const doc = fixture('scale');
  const panel = shown(doc).open('bench');
  expect([...panel.querySelectorAll('tbody th')].map(text)).toEqual(doc.bench!.rows.map((row) => row.label));
  expect(text(panel)).toContain('without a pass');
  expect(text(panel)).toMatch(/1\.00×/);
});

describe('history', () => {
  const table = (panel: Element): string[] => [...panel.querySelectorAll('tbody tr')].map(text);

  test('each version has its numbers and whether its result was right', () => {
    const panel = shown(fixture('versions')).open('history');
    const [first, second] = table(panel);
    expect(first).toContain('✓ right');
    expect(second).toContain('not checked');
    expect(second).toContain('(this card)');
    expect(second).toContain('+2 −1 lines');
  });

  test('two sources stand side by side, and the words that changed are marked', async () => {
    const panel = shown(fixture('versions')).open('history');
    await until(() => panel.querySelector('.cm-mergeView'));
    expect([...panel.querySelectorAll('.bnb-word')].map(text)).toEqual(['2.0', '3.0']);
  });

  test('the first pass where two versions part is found in a saved document', async () => {
    const panel = shown(fixture('versions')).open('history');
    [...panel.querySelectorAll('button')].find((b) => text(b).startsWith('First pass'))!.click();
    const said = await until(
      () => text(panel.querySelector('[role=status]')!),
      (s) => s.includes('part at'),
    );
    expect(said).toBe('Versions 1 and 2 part at parse.');
    expect(panel.querySelector('select')!.value).toBe('parse');
  });

  test('passes that only one version went through are offered, and do not keep the others from being compared', async () => {
    const doc = fixture('versions');
    const stages = doc.history!.versions[0].views!.find((v) => v.target === 'sm_90a')!.stages;
    const own = doc.views.find((v) => v.target === 'sm_90a')!.stages!;
    own.forEach((stage, i) => (stages[i].text = stage.text)); // the same IR, but for a pass of its own and the last one
    stages.at(-1)!.text = stages[0].text;
    stages.splice(own.findIndex((stage) => stage.name === 'coalesce') + 1, 0, {
      name: 'rings',
      text: stages[0].text,
    });
    stages.splice(1, 1);
    const panel = shown(doc).open('history');
    const compare = panel.querySelector('select')!;
    const names = [...compare.options].map((option) => option.value);
    expect(names.slice(names.indexOf('coalesce')).slice(0, 3)).toEqual(['coalesce', 'rings', 'tensorcore']);
    expect(names).toContain(own[1].name);
    choose(compare, 'rings');
    await until(
      () => text(panel),
      (all) => all.includes('The pass rings does not apply to version 2'),
    );
    [...panel.querySelectorAll('button')].find((b) => text(b).startsWith('First pass'))!.click();
    const said = await until(
      () => text(panel.querySelector('[role=status]')!),
      (s) => s.includes('part at'),
    );
    expect(said).toBe(`Versions 1 and 2 part at ${own.at(-1)!.name}.`);
  });

  test('a stage that the document left out is asked of the kernel, or said to be missing', async () => {
    const doc = fixture('versions');
    const old = doc.history!.versions[0];
    const target = old.views!.find((v) => v.target === 'sm_90a')!;
    target.stages.forEach((stage) => (stage.text = null));
    const panel = shown(doc).open('history');
    choose(panel.querySelector('select')!, 'coalesce');
    await until(
      () => text(panel),
      (all) => all.includes('This text is not there'),
    );

    const listing = { text: 'asked of the kernel', lines: [0] };
    const request = vi.fn().mockResolvedValue({
      views: [{ target: 'sm_90a', stages: [{ name: 'coalesce', listing }] }],
    });
    const live = shown(doc, { ...saved, state: 'live', request }).open('history');
    choose(live.querySelector('select')!, 'coalesce');
    await until(
      () => text(live),
      (all) => all.includes('asked of the kernel'),
    );
    expect(request).toHaveBeenCalledWith('version', { version: old.version });
  });

  test('what %blockdiff asked for is open at once', async () => {
    const { root } = shown(fixture('diff'));
    const tab = root.querySelector('[role=tab][aria-selected=true]')!;
    expect(text(tab)).toBe('History');
    await until(() => root.querySelector('.cm-mergeView'));
    expect(text(root.querySelector('.bnb-sides')!)).toBe('scale:parsescale:coalesce');
    expect(text(root.querySelector('.bnb-summary')!)).toMatch(/^Ops: /);
  });
});

describe('knobs', () => {
  test('without a kernel they are shown and cannot be turned', () => {
    const panel = shown(fixture('scale')).open('knobs');
    const inputs = [...panel.querySelectorAll<HTMLInputElement>('input')];
    expect(inputs.length).toBeGreaterThan(5);
    expect(inputs.every((input) => input.disabled)).toBe(true);
    expect(text(panel)).toContain('Turning needs a live kernel');
  });

  test('a turn asks the kernel once, shows what changed and is saved; a failure is said and changes nothing', async () => {
    const doc = fixture('scale');
    const next = fixture('scale');
    next.knobs!.constants[0].value = 128;
    next.views[1].resources!.registers = 99;
    const request = vi
      .fn()
      .mockResolvedValueOnce({ document: next })
      .mockRejectedValueOnce(new Error('out of resources'));
    const save = vi.fn();
    const panel = shown(doc, { ...saved, state: 'live', request, save }).open('knobs');
    const slider = panel.querySelector<HTMLInputElement>('[data-knob=BLOCK]')!;
    for (const step of [1, 2]) {
      slider.value = String(Number(slider.value) + step);
      slider.dispatchEvent(new Event('input'));
    }
    await until(
      () => text(panel),
      (all) => all.includes('99 ◂'),
    );
    expect(request).toHaveBeenCalledOnce();
    expect((request.mock.calls[0][1] as { knobs: { constants: object } }).knobs.constants).toHaveProperty(
      'BLOCK',
    );
    expect(save).toHaveBeenCalledWith(next);
    panel.querySelector<HTMLInputElement>('input[type=checkbox]')!.click();
    await until(
      () => text(panel),
      (all) => all.includes('out of resources'),
    );
    expect(text(panel)).toContain('99 ◂');
  });

  test('while a turn is under way only the last of the next ones is asked for', async () => {
    const answers: ((value: unknown) => void)[] = [];
    const request = vi.fn((what: string) => {
      expect(what).toBe('turn');
      return new Promise((resolve) => answers.push(resolve));
    });
    const panel = shown(fixture('scale'), { ...saved, state: 'live', request }).open('knobs');
    const slider = panel.querySelector<HTMLInputElement>('[data-knob=num_warps]')!;
    for (const step of [0, 1, 3, 4]) {
      slider.value = String(step);
      slider.dispatchEvent(new Event('input'));
      await until(() => request.mock.calls.length === 1);
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(request).toHaveBeenCalledOnce();
    answers[0]({ document: fixture('scale') });
    await until(() => request.mock.calls.length === 2);
    const asked = request.mock.calls.map(
      (call) => (call as unknown as [string, { knobs: { num_warps: number } }])[1],
    );
    expect(asked.map(({ knobs }) => knobs.num_warps)).toEqual([1, 16]);
  });

  test('what nobody named is left to the compiler, follows its choice, and is left to it again by the reset', async () => {
    const next = fixture('scale');
    next.knobs!.num_warps.value = 8;
    const request = vi.fn((_what: string, _asked: unknown) => Promise.resolve({ document: next }));
    const panel = shown(fixture('scale'), { ...saved, state: 'live', request }).open('knobs');
    const slider = (name: string): HTMLInputElement => panel.querySelector(`[data-knob=${name}]`)!;
    const move = (name: string, value: number): void => {
      slider(name).value = String(value);
      slider(name).dispatchEvent(new Event('input'));
    };
    expect(slider('num_warps').getAttribute('aria-valuetext')).toBe('4');
    move('BLOCK', 1);
    await until(() => slider('num_warps').getAttribute('aria-valuetext') === '8');
    expect(slider('num_warps').value).toBe('3');
    move('num_warps', 2);
    await until(() => request.mock.calls.length === 2);
    [...panel.querySelectorAll('button')].find((found) => text(found).startsWith('Back'))!.click();
    await until(() => request.mock.calls.length === 3);
    const asked = request.mock.calls.map(
      (call) => (call[1] as { knobs: { num_warps: number | null } }).knobs,
    );
    expect(asked.map(({ num_warps }) => num_warps)).toEqual([null, 4, null]);
  });
});
