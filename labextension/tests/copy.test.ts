/** Copying: by the clipboard of the browser, otherwise by its older command, and a button that says what happened. */

import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { copyButton, copyText } from '../src/core/copy';
import { saved, until } from './fixtures';

const clipboard = (value: unknown): void =>
  void Object.defineProperty(navigator, 'clipboard', { configurable: true, value });

beforeEach(() => document.body.replaceChildren());
afterEach(() => {
  clipboard(undefined);
  delete (document as Partial<Document>).execCommand;
});

test('a page with a clipboard uses it, and a refusal is an error', async () => {
  const writeText = vi.fn().mockResolvedValueOnce(undefined).mockRejectedValueOnce(new Error('denied'));
  clipboard({ writeText });
  await copyText('a text');
  expect(writeText).toHaveBeenCalledWith('a text');
  await expect(copyText('a text')).rejects.toThrow('denied');
});

test('a page without one selects the text for the older command, and keeps the focus', async () => {
  const focused = document.body.appendChild(document.createElement('button'));
  focused.focus();
  const copied: string[] = [];
  document.execCommand = () => copied.push(document.querySelector('textarea')!.value) === 1;
  await copyText('a text');
  expect(copied).toEqual(['a text']);
  expect(document.querySelector('textarea')).toBeNull();
  expect(document.activeElement).toBe(focused);
  await expect(copyText('a text')).rejects.toThrow('gives this page no clipboard');
});

test('the button says whether the text was copied', async () => {
  const copy = vi.fn().mockResolvedValueOnce(undefined).mockRejectedValueOnce(new Error('denied'));
  const made = copyButton(
    () => ({ ...saved, copy }),
    () => Promise.resolve('a text'),
    'Copy it',
  );
  made.click();
  await until(() => made.textContent === 'Copied');
  await until(() => made.textContent === 'Copy');
  made.click();
  await until(() => made.textContent === 'Not copied');
  expect(copy.mock.calls).toEqual([['a text'], ['a text']]);
});
