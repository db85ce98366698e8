/** A listing of many lines draws those in sight only. */

import { expect, test } from 'vitest';

import { pane } from '../src/core/cm/pane';
import { Store } from '../src/core/store';
import { fixture, saved } from './fixtures';

test('a listing of 20,000 lines draws fewer than 1,000 of them', () => {
  const parent = document.body.appendChild(document.createElement('div'));
  const shown = pane(parent, 'IR', 'ir', new Store(fixture('scale'), saved));
  const lines = Array.from({ length: 20_000 }, (_, i) => `%${i} = add %${i} %${i} : tile<128xfp32>`);
  shown.show({ text: lines.join('\n'), lines: lines.map(() => 1) }, 'ir');
  expect(shown.editor.state.doc.lines).toBe(20_000);
  const drawn = parent.querySelectorAll('.cm-line').length;
  expect(drawn).toBeGreaterThan(0);
  expect(drawn).toBeLessThan(1_000);
  shown.dispose();
});
