/** The search in all listings of a target, and the choice of the colours. */

import { beforeEach, describe, expect, test } from 'vitest';

import { mount } from '../src/core/mount';
import { lastPalette, programColour } from '../src/core/palettes';
import { countLines } from '../src/core/views/listing_search';
import { fixture, saved, until } from './fixtures';

beforeEach(() => localStorage.clear());

function card(): HTMLElement {
  const element = document.body.appendChild(document.createElement('div'));
  mount(element, { ...fixture('scale'), show: ['code'] }, saved);
  return element;
}

describe('the search in all listings', () => {
  test('counts lines in both cases of letters', () => {
    expect(countLines('Load a\nstore b\nload c', 'LOAD')).toBe(2);
    expect(countLines('', 'x')).toBe(0);
  });

  test('counts the lines of each listing, and a click shows them', async () => {
    const element = card();
    const field = await until(() => element.querySelector<HTMLInputElement>('.bnb-search input'));
    field.value = 'load';
    field.dispatchEvent(new Event('input'));
    await until(() => element.querySelector('.bnb-search-results li'));
    const buttons = [...element.querySelectorAll<HTMLElement>('.bnb-search-results button')];
    const counts = Object.fromEntries(
      buttons.map((one) => /^(.*) (\d+)$/.exec(one.textContent)!.slice(1) as [string, string]),
    );
    expect(counts.source).toBe('1');
    expect(counts.parse).toBe('1');
    const sum = Object.values(counts).reduce((a, b) => a + Number(b), 0);
    const status = element.querySelector('.bnb-search [role=status]')!.textContent;
    expect(status).toContain(`${sum} lines in ${buttons.length} of `);
    buttons.find((one) => one.textContent.startsWith('parse'))!.click();
    await until(() => element.querySelector('.cm-search'));
    const chosen = element.querySelector<HTMLSelectElement>("[aria-label='Level in the middle']")!;
    expect(chosen.selectedOptions[0].textContent).toBe('IR after parse');
    field.value = 'no such text';
    field.dispatchEvent(new Event('input'));
    await until(() => element.querySelector('.bnb-search-results[hidden]'));
    expect(element.querySelector('.bnb-search [role=status]')!.textContent).toMatch(/^0 lines in 0 of /);
  });
});

describe('the colours', () => {
  test('the choice marks the card, and holds for the next one', () => {
    const choice = card().querySelector<HTMLSelectElement>("[aria-label='Colours']")!;
    expect(choice.closest<HTMLElement>('.bnb-card')!.dataset.palette).toBe('hues');
    choice.value = 'cividis';
    choice.dispatchEvent(new Event('change'));
    expect(choice.closest<HTMLElement>('.bnb-card')!.dataset.palette).toBe('cividis');
    expect(lastPalette()).toBe('cividis');
    expect(card().querySelector<HTMLElement>('.bnb-card')!.dataset.palette).toBe('cividis');
    localStorage.setItem('blocknb:palette', 'none of them');
    expect(lastPalette()).toBe('hues');
  });

  test('neighbouring programs have different colours in every palette', () => {
    for (const palette of ['hues', 'cividis', 'grey'] as const) {
      const colour = (x: number, y: number) => programColour(x + 7 * y, [7, 5, 1], palette);
      for (let x = 0; x < 6; x++) {
        for (let y = 0; y < 4; y++) {
          expect(colour(x, y)).not.toBe(colour(x + 1, y));
          expect(colour(x, y)).not.toBe(colour(x, y + 1));
        }
      }
    }
  });
});
