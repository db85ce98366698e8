import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { grid } from '../src/core/plot/grid';
import { mount } from '../src/core/mount';
import { toggleProjector } from '../src/core/projector';
import { fixture, saved, shown, until } from './fixtures';

const page = HTMLCanvasElement.prototype;
const getContext = page.getContext;
beforeEach(() => (page.getContext = () => null));
afterEach(() => {
  page.getContext = getContext;
  Reflect.deleteProperty(document, 'fullscreenEnabled');
  Reflect.deleteProperty(document, 'fullscreenElement');
  Reflect.deleteProperty(document, 'exitFullscreen');
  Reflect.deleteProperty(document.documentElement, 'requestFullscreen');
});

function press(element: EventTarget, key: string): boolean {
  return !element.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
}

/** A card in projector mode. */
function projected(name: 'scale' | 'learn' = 'scale') {
  const { root, card, open } = shown(fixture(name));
  open('passes');
  const section = root.querySelector<HTMLElement>('.bnb-card')!;
  const tool = root.querySelector<HTMLButtonElement>('[data-tool=projector]')!;
  tool.click();
  const tab = (): string => root.querySelector('[role=tab][aria-selected=true]')!.getAttribute('data-key')!;
  const pass = (): string =>
    section
      .querySelector('.bnb-panel:not([hidden]) .bnb-stage[aria-selected=true]')!
      .getAttribute('data-name')!;
  return {
    root,
    card,
    open,
    section,
    tool,
    tab,
    pass,
    on: () => section.classList.contains('bnb-projector'),
  };
}

describe('projector mode', () => {
  test('begins and ends by the button, the key f, and Escape; the view has the focus, then the button', () => {
    const { section, tool, on, card } = projected();
    expect([on(), tool.textContent, tool.getAttribute('aria-pressed')]).toEqual([true, 'Leave', 'true']);
    expect(section.getAttribute('popover')).toBe('manual');
    expect(document.activeElement!.getAttribute('role')).toBe('tabpanel');
    expect(press(document.activeElement!, 'Escape')).toBe(true);
    expect([on(), section.hasAttribute('popover'), document.activeElement]).toEqual([false, false, tool]);
    press(tool, 'f');
    expect(on()).toBe(true);
    press(section.querySelector('.bnb-filter')!, 'Escape'); // a field has the focus
    expect(on()).toBe(false);
    press(section.querySelector('.bnb-filter')!, 'f'); // is a letter there
    expect(on()).toBe(false);
    card.dispose();
  });

  test('steps through passes and tabs with content by keys, wherever the focus is', async () => {
    const { root, tab, pass, card } = projected();
    const panel = document.activeElement!;
    await until(() => pass());
    const first = pass();
    press(panel, 'PageDown');
    const second = pass();
    expect(second).not.toBe(first);
    press(panel, 'ArrowLeft');
    expect(pass()).toBe(first);
    (document.activeElement as HTMLElement).blur();
    expect(press(document.body, 'ArrowRight')).toBe(true);
    expect(pass()).toBe(second);
    press(document.body, 't');
    expect(tab()).toBe('resources');
    press(document.body, 'T');
    expect(tab()).toBe('passes');
    const seen = new Set<string>();
    while (!seen.has(tab())) {
      seen.add(tab());
      press(document.body, 't');
    }
    expect(
      [...root.querySelectorAll('.bnb-tab-empty')].some((one) => seen.has(one.getAttribute('data-key')!)),
    ).toBe(false);
    expect(seen.size).toBeGreaterThan(5);
    card.dispose();
    expect(press(document.body, 'ArrowRight')).toBe(false);
  });

  test('names its keys and those of the view, and + and − change the size', () => {
    const { root, section, card } = projected();
    const hints = (): string => root.querySelector('.bnb-projector-keys')!.textContent!;
    expect(hints()).toContain('← → next or previous pass');
    expect(hints()).toContain('Esc leave');
    const zoom = (): number => Number(section.style.getPropertyValue('--bnb-projector-zoom'));
    const before = zoom();
    press(document.activeElement!, '+');
    expect(zoom()).toBeGreaterThan(before);
    press(document.activeElement!, '-');
    expect(zoom()).toBe(before);
    press(document.activeElement!, 't');
    expect(hints()).not.toContain('pass');
    card.dispose();
  });

  test('asks for the whole screen after a click, and ends with it', async () => {
    let full: Element | null = null;
    const change = (to: Element | null): void => {
      full = to;
      document.dispatchEvent(new Event('fullscreenchange'));
    };
    const request = vi.fn(async () => change(document.documentElement));
    Object.defineProperties(document, {
      fullscreenEnabled: { value: true, configurable: true },
      fullscreenElement: { get: () => full, configurable: true },
    });
    Object.assign(document, { exitFullscreen: vi.fn(async () => change(null)) });
    document.documentElement.requestFullscreen = request;
    const { on, tool, card } = projected();
    await until(() => full);
    expect(on()).toBe(true);
    change(null); // the browser's Escape
    expect(on()).toBe(false);
    tool.click();
    await until(() => full);
    tool.click();
    expect(document.exitFullscreen).toHaveBeenCalledOnce();
    request.mockRejectedValueOnce(new Error('not in a frame'));
    tool.click();
    await until(() => request.mock.calls.length === 3);
    expect(on()).toBe(true); // the card covers the window
    card.dispose();
  });

  test('takes letters and the space from a slider, which keeps the arrows', async () => {
    const { root, tab, card, open } = projected('learn');
    open('launch');
    const slider = root.querySelector('.bnb-launch-slider')!;
    const playing = (): boolean => root.querySelector('[data-playing]') !== null;
    expect(press(slider, 'ArrowRight')).toBe(false);
    expect(press(slider, 'PageDown')).toBe(false);
    await until(() => root.querySelector('.bnb-panel:not([hidden]) [data-part=where]')!.textContent);
    expect([press(slider, ' '), playing()]).toEqual([true, true]);
    expect([press(slider, ' '), playing()]).toEqual([true, false]);
    expect([press(slider, 't'), tab()]).toEqual([true, 'footprint']);
    card.dispose();
  });

  test('takes the Page keys from a listing, which keeps the arrows', async () => {
    const { root, pass, card } = projected();
    const listing = await until(() => root.querySelector('.bnb-panel:not([hidden]) .cm-content'));
    const first = pass();
    press(listing!, 'ArrowDown');
    expect(pass()).toBe(first);
    expect(press(listing!, 'PageDown')).toBe(true);
    expect(pass()).not.toBe(first);
    press(listing!, 'PageUp');
    expect(pass()).toBe(first);
    card.dispose();
  });

  test('is of one card at a time, and a card that goes away leaves the focus and the page alone', () => {
    const one = projected();
    const place = document.createElement('div');
    const other = mount(place, fixture('scale'), saved);
    document.body.append(place);
    const scroll = (one.section.scrollIntoView = vi.fn());
    other.open({ tab: 'passes', parts: { projector: 'on' } });
    expect([one.on(), place.querySelector('.bnb-projector') !== null]).toEqual([false, true]);
    expect(place.contains(document.activeElement)).toBe(true);
    one.tool.click();
    expect([one.on(), place.querySelector('.bnb-projector')]).toEqual([true, null]);
    const focus = vi.spyOn(one.tool, 'focus');
    one.card.dispose();
    expect([one.on(), focus.mock.calls, scroll.mock.calls]).toEqual([false, [], []]);
    other.dispose();
  });

  test('is a command for a card', () => {
    const { section, on, card } = projected();
    expect(toggleProjector(section)).toBe(true);
    expect(on()).toBe(false);
    expect(toggleProjector(document.body)).toBe(false);
    card.dispose();
  });
});

test('a grid finds the cell under the pointer, also in an enlarged drawing', () => {
  const seen: [number, number][] = [];
  const { element, show, dispose } = grid('Elements', (row, column) => seen.push([row, column]));
  const text = (at: number): string => String(at);
  const cell = () => ({ text: '', shade: 0, off: false });
  show({ rows: 8, columns: 10, cell, rowHead: text, columnHead: text });
  const drawing = element.querySelector('svg')!;
  const size = [Number(drawing.getAttribute('width')), Number(drawing.getAttribute('height'))];
  for (const zoom of [1, 2.5]) {
    drawing.getBoundingClientRect = () => new DOMRect(30, 10, zoom * size[0], zoom * size[1]);
    const [x, y] = [30 + zoom * (size[0] - 12), 10 + zoom * (size[1] - 30)]; // in the last column, in the last row but one
    element.dispatchEvent(new MouseEvent('pointermove', { clientX: x, clientY: y }));
  }
  expect(seen).toEqual([
    [6, 9],
    [6, 9],
  ]);
  dispose();
});
