/** Views that still wait for the kernel: each control and picture has its name from the moment it is in the page. */

import { expect, test } from 'vitest';

import type { Host } from '../src/core/host';
import { fixture, type Name, saved, shown } from './fixtures';

const NAMED = '[role=img], [role=group], [role=application], [role=region], canvas:not([aria-hidden])';
/** A kernel that never answers. */
const host: Host = { ...saved, state: 'live', request: () => new Promise(() => undefined) };

const open = (name: Name): [string, HTMLElement][] => {
  const card = shown({ ...fixture(name), teaching: undefined }, host);
  const tabs = [...card.root.querySelectorAll<HTMLElement>('[role=tab]')];
  return tabs.map((tab) => [tab.dataset.key!, card.open(tab.dataset.key!)]);
};

for (const name of ['scale', 'versions', 'diff', 'bench', 'learn'] as const) {
  test(`no picture and no group of ${name} is without a name before the kernel answers`, () => {
    const nameless = open(name).flatMap(([key, panel]) =>
      [...panel.querySelectorAll(NAMED)]
        .filter((element) => !element.getAttribute('aria-label') && !element.getAttribute('aria-labelledby'))
        .map((element) => `${key}: ${element.outerHTML.slice(0, 100)}`),
    );
    expect(nameless).toEqual([]);
  });
}

test('the pictures of the teaching views are hidden until there is something to draw', () => {
  const card = shown({ ...fixture('learn'), teaching: undefined }, host);
  for (const key of ['footprint', 'step']) {
    const panel = card.open(key);
    expect(panel.hidden, key).toBe(false);
    expect(panel.querySelector('canvas')!.closest('[hidden]'), key).not.toBeNull();
  }
});
