import { expect, test } from 'vitest';

import { Store } from '../src/core/store';
import { notesList } from '../src/core/views/notes';
import { fixture, saved } from './fixtures';

test('the place of a note is a button, which selects its line and op; a note without one has none', () => {
  const store = new Store(fixture('scale'), saved);
  const list = notesList(
    [
      { kind: 'missed', text: 'not vectorized', line: 4, op: 7 },
      { kind: 'info', text: 'folded', line: null, op: 2 },
      { kind: 'info', text: 'removed', line: null, op: -1 },
    ],
    store,
  );
  const buttons = [...list.querySelectorAll('button')];
  expect(buttons.map((button) => button.textContent)).toEqual(['line 4', 'op 2']);
  expect(list.querySelector('[tabindex]')).toBeNull();
  buttons[0].click();
  expect(store.pinned).toMatchObject({ lines: [4], op: 7 });
  buttons[1].click();
  expect(store.pinned).toMatchObject({ lines: [], op: 2 });
});
