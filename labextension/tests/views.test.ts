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
  test('its tabs are one tab stop, the arrow keys move, and an empty view says why', () => {
    const { root, open } = shown(fixture('versions'));
    const tabs = [...root.querySelectorAll<HTMLElement>('[role=tab]')];
    expect(tabs.filter((tab) => tab.tabIndex === 0).length).toBe(1);
    tabs[0].focus();
    press(tabs[0], 'ArrowRight');
    expect(document.activeElement).toBe(tabs[1]);
    expect(tabs[1].getAttribute('aria-selected')).toBe('true');
    expect(text(open('bench'))).toContain('--baseline');
  });

  test('keys without a modifier stay in the card; Escape, Tab and keys with Ctrl leave it', () => {
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

  test('? shows and hides the keys of the open view', () => {
    const { root, open } = shown(fixture('scale'));
    const keys = root.querySelector<HTMLElement>('.bnb-keys')!;
    const panel = open('passes');
    press(panel, '?');
    expect(keys.hidden).toBe(false);
    expect(text(keys)).toContain('next or previous pass');
    press(panel, '?');
    expect(keys.hidden).toBe(true);
  });

  test.each<Name>(['scale', 'versions', 'diff', 'bench'])(
    'no view renders a text of %s as markup',
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

  test('the header says when the cell has changed', () => {
    const { root, card } = shown(fixture('scale'), { ...saved, cell: 'found' });
    expect(text(root)).not.toContain('has changed');
    card.connect({ ...saved, cell: 'changed' });
    expect(text(root)).toContain('the cell has changed');
    const live = { ...saved, state: 'live' as const, request: () => Promise.resolve({}) };
    const compared = shown({ ...fixture('scale'), kind: 'compare' }, { ...live, cell: 'changed' });
    expect(text(compared.root)).not.toContain('has changed');
    expect([...compared.root.querySelectorAll('[role=tab]')].map(text)).not.toContain('Launch');
  });

  test('a difference from an earlier version does not say that the cell has changed', () => {
    const { root } = shown(fixture('diff'), { ...saved, cell: 'changed' });
    expect(text(root)).not.toContain('has changed');
  });

  test('a difference from an earlier version does not say that the cell has changed', () => {
    const { root } = shown(fixture('diff'), { ...saved, cell: 'changed' });
    expect(text(root)).not.toContain('has changed');
  });

  test('a document without a compilation has only the nonempty views', () => {
    const { root } = shown(fixture('bench'));
    expect([...root.querySelectorAll('[role=tab]')].map(text)).toEqual(['Bench']);
    expect(text(root)).toContain('np.sort(x)');
  });
});

describe('passes', () => {
  const rows = (panel: Element): HTMLElement[] => [...panel.querySelectorAll<HTMLElement>('[role=option]')];
  const chosen = (panel: Element): string =>
    text(panel.querySelector('[role=option][aria-selected=true] .bnb-stage-name')!);

  test('each pass is listed; the user can hide passes without changes', () => {
    const doc = fixture('scale');
    const panel = shown(doc).open('passes');
    expect(rows(panel).length).toBe(doc.views[1].stages!.length);
    panel.querySelector<HTMLInputElement>('input[type=checkbox]')!.click();
    const kept = doc.views[1].stages!.filter((stage, i) => i === 0 || stage.changed);
    expect(rows(panel).map((row) => text(row.firstElementChild!))).toEqual(kept.map((stage) => stage.name));
  });

  test('j and k step through the passes, / filters, d compares with the previous pass', async () => {
    const panel = shown(fixture('scale')).open('passes');
    expect(chosen(panel)).toBe('pointers'); // the first pass that changed something
    press(panel, 'd');
    await until(() => panel.querySelector('.cm-mergeView'));
    press(panel, 'k');
    expect(chosen(panel)).toBe('unroll');
    press(panel, 'j');
    expect(chosen(panel)).toBe('pointers');
    press(panel, '/');
    const field = document.activeElement as HTMLInputElement;
    field.value = 'coalesce';
    field.dispatchEvent(new Event('input'));
    expect(rows(panel).map((row) => text(row.firstElementChild!))).toContain('coalesce');
    expect(rows(panel).length).toBeLessThan(4);
  });

  test('the search finds the first pass that adds a text, and compares it with the previous pass', async () => {
    const panel = shown(fixture('scale')).open('passes');
    const field = panel.querySelector<HTMLInputElement>('.bnb-finder input')!;
    field.value = '#a';
    press(field, 'Enter');
    await until(
      () => text(panel.querySelector('.bnb-finder [role=status]')!),
      (answer) => answer.includes('adds it'),
    );
    const merge = await until(() => panel.querySelector('.cm-mergeView'));
    expect(merge).toBeTruthy();
    expect(text(panel.querySelector('.bnb-summary')!)).toMatch(/^Ops: .*changed/);
    field.value = 'no such text';
    press(field, 'Enter');
    await until(
      () => text(panel.querySelector('.bnb-finder [role=status]')!),
      (answer) => answer.includes('No pass adds'),
    );
  });

  test('only the changed words of a line are marked, and an op that moved has a sign', async () => {
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
  test('the source is shown next to IR and PTX, numbered as in the cell', async () => {
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

  test('the source of a linked cell is hidden until the user shows it', () => {
    const host = { ...saved, highlightSource: () => {}, cell: 'found' as const };
    const { open, card } = shown(fixture('scale'), host);
    const panel = open('code');
    const column = panel.querySelector<HTMLElement>('.bnb-column')!;
    expect(column.hidden).toBe(true);
    panel.querySelector<HTMLElement>('.bnb-button')!.click();
    expect(column.hidden).toBe(false);
    panel.querySelector<HTMLElement>('.bnb-button')!.click();
    card.connect({ ...host, cell: 'changed' });
    expect(column.hidden).toBe(true); // the user's choice
    const other = shown(fixture('scale'), { ...host, cell: 'changed' }).open('code');
    expect(other.querySelector<HTMLElement>('.bnb-column')!.hidden).toBe(false);
  });

  test('the level that the cell requested is open', async () => {
    const panel = shown({ ...fixture('scale'), show: ['sass'] }).open('code');
    await until(
      () => text(panel),
      (all) => all.includes('EXIT'),
    );
  });
});

describe('resources', () => {
  test('each target has a column of registers, spills and occupancy, and a CPU says why it has none', () => {
    const doc = fixture('scale');
    const panel = shown(doc).open('resources');
    const held = doc.views[1].resources!.occupancy!;
    expect(text(panel)).toContain(`${held.percent} % (${held.warps_per_sm} of ${held.max_warps} warps)`);
    expect(text(panel)).toContain('A CPU runs the programs one after another');
  });

  test('the limit of the occupancy and advice are shown', () => {
    const doc = fixture('scale');
    doc.views[1].resources!.occupancy = {
      blocks_per_sm: 4,
      warps_per_sm: 16,
      max_warps: 64,
      percent: 25,
      limiter: 'registers',
      advice: ['8 registers fewer per thread -> 5 programs per SM (31 %)'],
    };
    const panel = shown(doc).open('resources');
    expect(text(panel)).toContain('Limited by the registers of the SM');
    expect(text(panel)).toContain('8 registers fewer per thread -> 5 programs');
    expect(panel.querySelector('meter')!.value).toBe(16);
  });

  test('a card with only a CPU target says why the view is empty', () => {
    const doc = fixture('scale');
    doc.views = [doc.views[0]];
    expect(text(shown(doc).open('resources'))).toContain('These figures exist for GPU targets only');
  });
});

test('a live kernel supplies deferred parts, which are shown and saved', async () => {
  const whole = fixture('scale');
  const doc = fixture('scale');
  delete doc.views[1].code!.sass;
  doc.views[1].later = ['sass'];
  doc.deferred = true;
  const request = vi.fn().mockResolvedValue({ document: whole });
  const save = vi.fn();
  const { open } = shown({ ...doc, show: ['sass'] }, { ...saved, state: 'live', request, save });
  const panel = open('code');
  await until(
    () => text(panel),
    (all) => all.includes('Loading the SASS'),
  );
  await until(
    () => text(panel),
    (all) => all.includes('EXIT'),
  );
  expect(request).toHaveBeenCalledExactlyOnceWith('whole', {});
  expect(save).toHaveBeenCalledWith(whole);
});

test('deferred parts come also if a view has added its own part meanwhile', async () => {
  const doc: Document = { ...fixture('learn'), teaching: { learn: true }, deferred: true };
  const answers = new Map<string, (answer: unknown) => void>();
  const request = vi.fn((what: string) => new Promise<unknown>((resolve) => answers.set(what, resolve)));
  const save = vi.fn();
  const { open } = shown(doc, { ...saved, state: 'live', request, save });
  open('step');
  await until(() => answers.has('teach') && answers.has('whole'));
  const part = { why: 'no values' };
  answers.get('teach')!({ part, saved: part });
  await until(() => save.mock.calls.length === 1);
  const whole = { ...fixture('learn'), teaching: { learn: true, step: part } };
  answers.get('whole')!({ document: whole });
  await until(() => save.mock.calls.length === 2);
  expect(save).toHaveBeenLastCalledWith(whole);
});

test('an error of the deferred parts is told, but not that the kernel has stopped', async () => {
  const doc = { ...fixture('scale'), deferred: true };
  const request = vi.fn(() => Promise.reject(new Error('nvdisasm has failed')));
  const { root } = shown(doc, { ...saved, state: 'live', request });
  const notice = (): HTMLElement => root.querySelector('.bnb-notice')!;
  await until(() => !notice().hidden);
  expect(text(notice())).toBe('A part of this card cannot be shown. nvdisasm has failed');
  let stop: (error: Error) => void = () => {};
  const waiting = vi.fn(() => new Promise<unknown>((_, reject) => (stop = reject)));
  const { card, root: other } = shown(doc, { ...saved, state: 'live', request: waiting });
  await until(() => waiting.mock.calls.length);
  stop(new Error('The kernel has stopped.'));
  card.connect({ state: 'disconnected' });
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(other.querySelector<HTMLElement>('.bnb-notice')!.hidden).toBe(true);
});

test('bench: the kernel, its variants and baselines with medians, spread and ratios', () => {
  const doc = fixture('scale');
  const panel = shown(doc).open('bench');
  expect([...panel.querySelectorAll('tbody th')].map(text)).toEqual(doc.bench!.rows.map((row) => row.label));
  expect(text(panel)).toContain('without a pass');
  expect(text(panel)).toMatch(/1\.00×/);
  const [base, ...others] = doc.bench!.rows;
  expect(base.ratio).toBeUndefined();
  expect(others.every((row) => row.ratio!.pairs >= 12)).toBe(true);
});

test('a wrong variant has a colour and no time, and a benchmark of expressions has no state', () => {
  const doc = fixture('scale');
  doc.bench!.rows[1] = { label: 'without it', kind: 'without', error: '✗ WRONG: 50 % of `out` differs' };
  doc.facts.push(['check', '✗ WRONG: `out == x`']);
  const { root, open } = shown(doc);
  expect(text(open('bench').querySelector('.bnb-wrong')!)).toContain('50 %');
  expect(text(root.querySelector('.bnb-fact-text.bnb-wrong')!)).toContain('WRONG');
  expect(root.querySelector('.bnb-state')).not.toBeNull();
  expect(shown(fixture('bench')).root.querySelector('.bnb-state')).toBeNull();
});

describe('history', () => {
  const table = (panel: Element): string[] => [...panel.querySelectorAll('tbody tr')].map(text);

  test('each version has its measurements and the result of its check', () => {
    const panel = shown(fixture('versions')).open('history');
    const [first, second] = table(panel);
    expect(first).toContain('✓ correct');
    expect(second).toContain('not checked');
    expect(second).toContain('(this card)');
    expect(second).toContain('+2 −1 lines');
  });

  test('two sources are side by side, with their changed words marked', async () => {
    const panel = shown(fixture('versions')).open('history');
    await until(() => panel.querySelector('.cm-mergeView'));
    expect([...panel.querySelectorAll('.bnb-word')].map(text)).toEqual(['2.0', '3.0']);
  });

  test('the first pass where two versions differ is found in a saved document', async () => {
    const panel = shown(fixture('versions')).open('history');
    [...panel.querySelectorAll('button')].find((b) => text(b).startsWith('Find first'))!.click();
    const status = await until(
      () => text(panel.querySelector('[role=status]')!),
      (s) => s.includes('first differ'),
    );
    expect(status).toBe('Versions 1 and 2 first differ after parse.');
    expect(panel.querySelector('select')!.value).toBe('parse');
  });

  test('passes of only one version are listed, and the other passes can still be compared', async () => {
    const doc = fixture('versions');
    const stages = doc.history!.versions[0].views!.find((v) => v.target === 'sm_90a')!.stages;
    const own = doc.views.find((v) => v.target === 'sm_90a')!.stages!;
    own.forEach((stage, i) => (stages[i].text = stage.text)); // the same IR, except for one additional pass and the last pass
    stages.at(-1)!.text = stages[0].text;
    const at = own.findIndex((stage) => stage.name === 'coalesce');
    stages.splice(at + 1, 0, {
      name: 'software_pipelining',
      text: stages[0].text,
    });
    stages.splice(1, 1);
    const panel = shown(doc).open('history');
    const compare = panel.querySelector('select')!;
    const names = [...compare.options].map((option) => option.value);
    expect(names[names.indexOf('coalesce') + 1]).toBe('software_pipelining');
    expect(names[names.indexOf('coalesce') + 2]).toBe(own[at + 1].name);
    expect(names).toContain(own[1].name);
    choose(compare, 'software_pipelining');
    await until(
      () => text(panel),
      (all) => all.includes('The pass software_pipelining does not apply to version 2'),
    );
    [...panel.querySelectorAll('button')].find((b) => text(b).startsWith('Find first'))!.click();
    const status = await until(
      () => text(panel.querySelector('[role=status]')!),
      (s) => s.includes('first differ'),
    );
    expect(status).toBe(`Versions 1 and 2 first differ after ${own.at(-1)!.name}.`);
  });

  test('the kernel supplies a stage that the document omits; without a kernel it is unavailable', async () => {
    const doc = fixture('versions');
    const old = doc.history!.versions[0];
    const target = old.views!.find((v) => v.target === 'sm_90a')!;
    target.stages.forEach((stage) => (stage.text = null));
    const panel = shown(doc).open('history');
    choose(panel.querySelector('select')!, 'coalesce');
    await until(
      () => text(panel),
      (all) => all.includes('This text is unavailable'),
    );

    const listing = { text: 'sent by the kernel', lines: [0] };
    const request = vi.fn().mockResolvedValue({
      views: [{ target: 'sm_90a', stages: [{ name: 'coalesce', listing }] }],
    });
    const live = shown(doc, { ...saved, state: 'live', request }).open('history');
    choose(live.querySelector('select')!, 'coalesce');
    await until(
      () => text(live),
      (all) => all.includes('sent by the kernel'),
    );
    expect(request).toHaveBeenCalledWith('version', { version: old.version });
  });

  test('PTX and SASS of two versions are asked of the kernel, or the command that shows them is named', async () => {
    const doc = fixture('versions');
    const click = (panel: Element): void =>
      [...panel.querySelectorAll('button')].find((b) => text(b) === 'Compare LLVM, PTX and SASS')!.click();
    const status = (panel: Element): string => text(panel.querySelector('[role=status]')!);
    const panel = shown(doc).open('history');
    click(panel);
    const command = 'Without a live kernel, run the cell and then %blockdiff scale@1 scale@2.';
    await until(() => status(panel) === command);
    const request = vi.fn().mockRejectedValue(new Error('the kernel has discarded a version'));
    const live = shown(doc, { ...saved, state: 'live', request }).open('history');
    click(live);
    await until(() => status(live).includes('discarded'));
    const versions = doc.history!.versions.map((v) => v.version);
    expect(request).toHaveBeenCalledWith('compare', { versions });
  });

  test('the comparison of %blockdiff is open at once', async () => {
    const { root } = shown(fixture('diff'));
    const tab = root.querySelector('[role=tab][aria-selected=true]')!;
    expect(text(tab)).toBe('History');
    await until(() => root.querySelector('.cm-mergeView'));
    expect(text(root.querySelector('.bnb-sides')!)).toBe('scale:parsescale:coalesce');
    expect(text(root.querySelector('.bnb-summary')!)).toMatch(/^Ops: /);
  });
});
