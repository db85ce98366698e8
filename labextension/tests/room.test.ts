import { describe, expect, test, vi } from 'vitest';

import { unchangedRuns, unifiedLines } from '../src/core/cm/unified';
import { mount } from '../src/core/mount';
import type { Document } from '../src/core/schema';
import { fixture, saved, shown, until } from './fixtures';

const text = (element: Element | null): string => element?.textContent ?? '';

function press(element: Element, key: string, more: KeyboardEventInit = {}): boolean {
  return element.dispatchEvent(
    new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true, ...more }),
  );
}

function named(root: Element, label: string): HTMLButtonElement | undefined {
  return [...root.querySelectorAll('button')].find((one) => text(one) === label);
}

describe('the header', () => {
  const doc = (): Document => ({
    ...fixture('scale'),
    facts: [
      ['time', '12 µs (median of 30)'],
      ['check', '✗ WRONG: `a == b`'],
      ['warning', 'busy'],
    ],
    headline: [
      ['time', '12 µs', ['median of 30, warm']],
      ['check', '✗ WRONG', ['`a == b`']],
      ['device', 'CPU', []],
    ],
  });

  test('three facts are in sight, the others are folded, and a fold stays as the user left it', () => {
    const { root, card } = shown(doc());
    const glanced = [...root.querySelectorAll('.bnb-glanced')];
    expect(glanced.map((one) => one.getAttribute('data-fact'))).toEqual(['time', 'check', 'device']);
    expect(text(root.querySelector('.bnb-glanced-value.bnb-wrong'))).toBe('✗ WRONG');
    const fold = root.querySelector('details')!;
    expect(fold.open).toBe(false);
    expect(text(fold.querySelector('summary'))).toBe('All facts (3, 1 warning)');
    fold.open = true;
    card.update(doc());
    expect(root.querySelector('details')!.open).toBe(true);
    expect(root.querySelector('dl, dt, dd')).toBeNull();
  });

  test('a document without a headline shows its time and check', () => {
    const old = { ...doc(), headline: undefined };
    const values = [...shown(old).root.querySelectorAll('.bnb-glanced-value')].map(text);
    expect(values).toEqual(['12 µs (median of 30)', '✗ WRONG: a == b']);
  });
});

describe('tabs', () => {
  test('the tab that answers the option of the cell opens first, unless --show names another', () => {
    const active = (doc: Document): string | null =>
      shown(doc).root.querySelector('[role=tab][aria-selected=true]')!.getAttribute('data-key');
    const doc = fixture('scale');
    expect(active({ ...doc, bench: undefined })).toBe('code');
    expect(active(doc)).toBe('bench');
    const sweep = { axis: 'B', values: [], unit: 'ms' as const, series: [] };
    expect(active({ ...doc, sweep })).toBe('sweep');
    expect(active({ ...doc, sweep, show: ['tiles'] })).toBe('tiles');
  });

  test('an empty tab measures with a live kernel, and shows the result', async () => {
    const doc = { ...fixture('scale'), bench: undefined };
    const request = vi.fn(() => Promise.resolve({ document: fixture('scale') }));
    const save = vi.fn();
    const { open } = shown(doc, { ...saved, state: 'live', request, save });
    const panel = open('bench');
    expect(text(panel)).not.toContain('--baseline');
    panel.querySelector('input')!.value = 'np.exp(x)';
    named(panel, 'Measure')!.click();
    await until(() => panel.querySelector('table'));
    expect(request).toHaveBeenCalledWith('measure', { view: 'bench', baseline: 'np.exp(x)' });
    expect(save).toHaveBeenCalledOnce();
  });

  test('a sweep is measured again, by default over the same values', async () => {
    const part = { label: 'a', kind: 'kernel' as const, median: [1, 2], low: [1, 2], high: [1, 2] };
    const axis = fixture('scale').knobs!.constants[0].name;
    const doc = { ...fixture('scale'), sweep: { axis, values: [3, 5], unit: 'ms' as const, series: [part] } };
    const request = vi.fn(() => Promise.resolve({ document: doc }));
    const panel = shown(doc, { ...saved, state: 'live', request }).open('sweep');
    named(panel, 'Measure again')!.click();
    await until(() => request.mock.calls.length);
    expect(request).toHaveBeenCalledWith('measure', { view: 'sweep', axis, values: '3, 5' });
    expect(named(shown(doc).open('sweep'), 'Measure again')).toBeFalsy();
  });

  test('an error of a measurement stands beside its button; without a kernel the button is off', async () => {
    const doc = { ...fixture('scale'), bench: undefined };
    const request = vi.fn(() => Promise.reject(new Error('np is not defined')));
    const panel = shown(doc, { ...saved, state: 'live', request }).open('roofline');
    named(panel, 'Measure')!.click();
    await until(() => text(panel.querySelector('.bnb-measure .bnb-wrong')) === '✗ np is not defined');
    expect(named(panel, 'Measure')!.disabled).toBe(false);
    expect(named(shown(doc).open('sweep'), 'Measure')!.disabled).toBe(true);
  });
});

test('each control has a tooltip', async () => {
  const request = vi.fn(() => new Promise(() => {}));
  for (const name of ['scale', 'versions', 'diff', 'bench'] as const) {
    const { root } = shown(fixture(name), { ...saved, state: 'live', request, dock: () => {} });
    for (const tab of root.querySelectorAll<HTMLElement>('[role=tab]')) {
      tab.click();
      await new Promise((resolve) => setTimeout(resolve, 30));
    }
    const without = [...root.querySelectorAll<HTMLElement>('button, input, select, summary')]
      .filter((one) => !one.title && !one.closest('label[title]') && !one.closest('.cm-editor'))
      .map((one) => one.outerHTML);
    expect(without).toEqual([]);
  }
});

describe('keys', () => {
  test('Enter with Shift, Ctrl or Alt runs the cell, but not from a text of several lines', () => {
    const runCell = vi.fn();
    const { root } = shown(fixture('scale'), { ...saved, runCell });
    const heard = vi.fn();
    root.addEventListener('keydown', heard);
    const card = root.querySelector('.bnb-card')!;
    press(card, 'Enter', { shiftKey: true });
    press(card, 'Enter', { ctrlKey: true });
    press(card, 'Enter', { altKey: true });
    press(card.appendChild(document.createElement('textarea')), 'Enter', { shiftKey: true });
    press(card, 'Enter');
    expect(runCell.mock.calls).toEqual([['next'], ['stay'], ['insert']]);
    expect(heard).not.toHaveBeenCalled();
  });

  test('the question mark is a button', () => {
    const { root } = shown(fixture('scale'));
    const help = root.querySelector<HTMLButtonElement>('button[aria-label=Keys]')!;
    help.click();
    expect(help.getAttribute('aria-expanded')).toBe('true');
    expect(text(root.querySelector('.bnb-keys'))).toContain('run the cell');
  });
});

describe('panes', () => {
  test('the switch for long lines holds for all listings of the card, and for the next card', async () => {
    const { root, open } = shown(fixture('scale'));
    const panel = open('passes');
    await until(() => panel.querySelector('.cm-content'));
    const wrapped = (): boolean => panel.querySelector('.cm-lineWrapping') !== null;
    expect(wrapped()).toBe(true);
    panel.querySelector<HTMLElement>('[data-display=wrap]')!.click();
    expect(wrapped()).toBe(false);
    const pressed = [...root.querySelectorAll('[data-display=wrap]')].map((one) => one.ariaPressed);
    expect(new Set(pressed)).toEqual(new Set(['false']));
    const next = shown(fixture('scale')).open('passes').querySelector<HTMLElement>('[data-display=wrap]')!;
    expect(next.getAttribute('aria-pressed')).toBe('false');
    next.click();
  });

  test('a comparison has two columns or one, with the same lines', async () => {
    const panel = shown(fixture('scale')).open('passes');
    press(panel, 'd');
    await until(() => panel.querySelector('.cm-mergeView'));
    panel.querySelector<HTMLElement>('[data-display=unified]')!.click();
    expect(panel.querySelector('.cm-mergeView')).toBeNull();
    expect(panel.querySelectorAll('.bnb-added, .bnb-removed').length).toBeGreaterThan(0);
    expect(text(panel.querySelector('.bnb-summary'))).toContain('Ops:');
    panel.querySelector<HTMLElement>('[data-display=unified]')!.click();
    expect(panel.querySelector('.cm-mergeView')).not.toBeNull();
  });

  test('in one column, removed lines stand above the lines that replace them', () => {
    const lines = unifiedLines([{ fromA: 1, toA: 3, fromB: 1, toB: 2 }], 4);
    expect(lines).toEqual([
      { a: 0, b: 0 },
      { a: 1, b: -1 },
      { a: 2, b: -1 },
      { a: -1, b: 1 },
      { a: 3, b: 2 },
    ]);
  });

  test('unchanged lines are folded, with three in sight beside a difference', () => {
    const same = (n: number) => Array.from({ length: n }, (_, i) => ({ a: i, b: i }));
    expect(unchangedRuns([...same(10), { a: 10, b: -1 }, ...same(8)])).toEqual([[0, 7]]);
    expect(unchangedRuns(same(5))).toEqual([]);
  });

  test('a pane becomes large and small again, also by Escape, which does not leave the card then', () => {
    const { root, open } = shown(fixture('scale'));
    const heard = vi.fn();
    root.addEventListener('keydown', heard);
    const panel = open('passes');
    named(panel, 'Maximise')!.click();
    const pane = panel.querySelector('.bnb-maximised')!;
    expect(named(panel, 'Restore')).toBe(document.activeElement);
    press(pane, 'Escape');
    expect(panel.querySelector('.bnb-maximised')).toBeNull();
    expect(heard).not.toHaveBeenCalled();
  });

  test('the list of passes folds, and its button says so', () => {
    const panel = shown(fixture('scale')).open('passes');
    const toggle = panel.querySelector<HTMLElement>('[aria-label="Hide the list of passes"]')!;
    toggle.click();
    expect(panel.querySelector<HTMLElement>('.bnb-side')!.hidden).toBe(true);
    expect(toggle.getAttribute('aria-expanded')).toBe('false');
  });
});

test('a docked view has the choices of the card, follows its document and its selection, and takes them to the next card', () => {
  const { card, open } = shown(fixture('scale'));
  const panel = open('passes');
  press(panel, 'j');
  const chosen = (element: Element): string =>
    text(element.querySelector('[aria-selected=true] .bnb-stage-name'));
  const place = document.createElement('div');
  const docked = card.dock('passes', place);
  expect(chosen(place)).toBe(chosen(panel));
  expect(place.querySelector('[role=tab]')).toBeNull();
  press(place.querySelector('.bnb-panel')!, 'j');
  expect(chosen(place)).not.toBe(chosen(panel));
  press(place.querySelector('.bnb-panel')!, '?');
  press(panel, '?');
  const rows = (keys: Element): string[] => [...keys.querySelectorAll('kbd')].map((key) => key.textContent);
  expect(rows(place.querySelector('.bnb-keys')!)).not.toContain('f'); // only a card has a projector mode
  expect(rows(panel.closest('.bnb-card')!.querySelector('.bnb-keys')!)).toContain('f');
  const before = chosen(place);
  docked.dispose();
  const next = mount(document.createElement('div'), fixture('scale'), saved);
  next.dock('passes', place, docked.view);
  expect(chosen(place)).toBe(before);
});
