import { describe, expect, test, vi } from 'vitest';

import { mountView } from '../src/core/mount_view';
import type { Modified } from '../src/core/schema';
import { fixture, saved, shown, until } from './fixtures';

const text = (element: Element): string => element.textContent ?? '';

describe('knobs', () => {
  test('without a kernel they are visible and disabled', () => {
    const panel = shown(fixture('scale')).open('knobs');
    const inputs = [...panel.querySelectorAll<HTMLInputElement>('input')];
    expect(inputs.length).toBeGreaterThan(5);
    expect(inputs.every((input) => input.disabled)).toBe(true);
    expect(text(panel)).toContain('Knobs need a live kernel');
  });

  test('a change sends one request, shows the changes and is saved; a failure shows a message only', async () => {
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

  test('a change names what it set and its verdict; the notebook saves the card of the cell', async () => {
    const time = { n: 40, cold: false, median: 0.02, low: 0.019, high: 0.021, device: 'CPU' };
    const modified: Modified = {
      settings: 'BLOCK=128',
      verdict: 'wrong',
      text: '✗ WRONG: 50 % of `out` differs',
      outputs: '50 % of `out` differs',
      ratio: null,
      cell: null,
      now: null,
      notes: [],
    };
    const next = { ...fixture('scale'), modified };
    const kept = { ...fixture('scale'), modified };
    const request = vi.fn().mockResolvedValueOnce({ document: next, saved: kept });
    const save = vi.fn();
    const panel = shown(fixture('scale'), { ...saved, state: 'live', request, save }).open('knobs');
    panel.querySelector<HTMLInputElement>('input[type=checkbox]')!.click();
    await until(() => panel.querySelector('.bnb-modified'));
    expect(text(panel.querySelector('.bnb-modified')!)).toContain('Changed: BLOCK=128');
    expect(panel.querySelector('.bnb-modified')!.getAttribute('data-verdict')).toBe('wrong');
    expect(save).toHaveBeenCalledWith(kept);
    const faster = {
      ...modified,
      verdict: 'faster' as const,
      text: '1.30 times as fast',
      cell: time,
      now: time,
    };
    const reopened = shown({ ...kept, modified: faster }).open('knobs');
    expect(text(reopened)).toContain('Changed after the cell ran');
    expect(text(reopened)).toContain('▲ 1.30 times as fast');
    expect(text(reopened)).toContain('20 µs (median of 40, warm, 19 µs to 21 µs, CPU)');
  });

  test('during a request only the last of the following changes is sent', async () => {
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
    const sent = request.mock.calls.map(
      (call) => (call as unknown as [string, { knobs: { num_warps: number } }])[1],
    );
    expect(sent.map(({ knobs }) => knobs.num_warps)).toEqual([1, 16]);
  });

  test('an option without a user value shows the compiler’s choice, also after a reset', async () => {
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
    [...panel.querySelectorAll('button')].find((found) => text(found).startsWith('Reset'))!.click();
    await until(() => request.mock.calls.length === 3);
    const sent = request.mock.calls.map((call) => (call[1] as { knobs: { num_warps: number | null } }).knobs);
    expect(sent.map(({ num_warps }) => num_warps)).toEqual([null, 4, null]);
  });
});

describe('knobs that are disposed', () => {
  const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 150)); // longer than the debounce

  test.each(['knobs', 'card'])(
    'a change just before a widget “%s” is removed is not requested',
    async (key) => {
      const request = vi.fn(() => new Promise(() => {}));
      const place = document.createElement('div');
      document.body.replaceChildren(place);
      const host = { ...saved, state: 'live' as const, request };
      const view = mountView(place, key, fixture('scale'), host, {}, () => {});
      await until(() => place.querySelector('[role=tab][data-key=knobs], [data-knob]'));
      place.querySelector<HTMLElement>('[role=tab][data-key=knobs]')?.click();
      place.querySelector<HTMLInputElement>('[data-knob=BLOCK]')!.dispatchEvent(new Event('input'));
      view.dispose();
      await pause();
      expect(request).not.toHaveBeenCalled();
    },
  );

  test('the answer to a request that was in progress is neither shown nor saved', async () => {
    let answer = (_: unknown): void => {};
    const request = vi.fn(() => new Promise((resolve) => (answer = resolve)));
    const save = vi.fn();
    const { card, open } = shown(fixture('scale'), { ...saved, state: 'live', request, save });
    const panel = open('knobs');
    panel.querySelector<HTMLInputElement>('input[type=checkbox]')!.click();
    await until(() => request.mock.calls.length === 1);
    card.dispose();
    answer({ document: fixture('versions') });
    await pause();
    expect(save).not.toHaveBeenCalled();
    expect(request).toHaveBeenCalledTimes(1);
  });
});
