import { describe, expect, test } from 'vitest';

import { readable } from '../src/core/documents';
import type { Host } from '../src/core/host';
import type { Document, Memory } from '../src/core/schema';
import { fixture, saved, shown } from './fixtures';

const GPU: Memory = {
  pools: [
    { name: "CuPy's pool on GPU 0: used", before: 1024, after: 4096, peak: 8192 },
    { name: "CuPy's pool on GPU 0: held", before: 8192, after: 8192, peak: 8192 },
    { name: 'GPU 0: used by all processes', before: 4096, after: 2048, peak: null },
  ],
  launches: [{ kernel: 'scale', device: 0, launches: 3, bytes: 1536, blocks: 2, peak: 1024 }],
  copies: [
    {
      direction: 'device to host',
      bytes: 400,
      times: 2,
      line: 5,
      place: 'cell In[3], line 5',
      code: 'total = float(out.sum())',
      by: '',
    },
    {
      direction: 'host to device',
      bytes: 4,
      times: 1,
      line: null,
      place: 'helper.py, line 9',
      code: '<img src=x>',
      by: 'blocknb',
    },
  ],
  arrays: [
    { names: ['x', 'y'], bytes: 3072, arrays: 1, what: 'float32 (768,)', place: 'GPU 0', new: true },
    { names: ['Out[2]'], bytes: 1024, arrays: 1, what: 'float32 (256,)', place: 'GPU 0', new: false },
  ],
  more_arrays: 2,
  kept: 3072,
  unnamed: 512,
  notes: ['A note with `code`.'],
};
const doc = (memory?: Memory): Document => ({ ...fixture('scale'), memory });
const rows = (panel: HTMLElement): string[][] =>
  [...panel.querySelectorAll('tr')].map((row) => [...row.children].map((cell) => cell.textContent ?? ''));

describe('the Memory view', () => {
  test('shows pools with their change, launches, copies, arrays and notes', () => {
    const panel = shown(doc(GPU)).open('memory');
    const found = rows(panel);
    expect(found).toContainEqual(["CuPy's pool on GPU 0: used", '1 KiB', '4 KiB', '+3 KiB', '8 KiB']);
    expect(found).toContainEqual(['GPU 0: used by all processes', '4 KiB', '2 KiB', '−2 KiB', '–']);
    expect(found).toContainEqual(["CuPy's pool on GPU 0: held", '8 KiB', '8 KiB', 'none', '8 KiB']);
    expect(found).toContainEqual(['scale', '3', '1.5 KiB', '2', '1 KiB']);
    expect(found).toContainEqual(['x, y', '3 KiB', '', 'float32 (768,)', 'GPU 0', 'this cell']);
    expect(found).toContainEqual(['Out[2]', '1 KiB', '', 'float32 (256,)', 'GPU 0', 'before']);
    expect(panel.textContent).toContain('helper.py, line 9 (by blocknb)<img src=x>');
    expect(panel.querySelector('img')).toBeNull();
    expect(panel.textContent).toContain('and 2 more');
    expect(panel.textContent).toContain('512 B that the cell allocated exist');
  });

  test('a copy is linked with its line of the cell, both ways', () => {
    const lit: (readonly number[] | null)[] = [];
    let report = (_: number | null): void => {};
    const host: Host = {
      ...saved,
      highlightSource: (lines) => void lit.push(lines),
      onSourceLine: (callback) => {
        report = callback;
        return () => {};
      },
    };
    const panel = shown(doc(GPU), host).open('memory');
    const [mine, other] = [...panel.querySelectorAll('tr')].filter((row) =>
      /to (host|device)/.test(row.textContent!),
    );
    mine.dispatchEvent(new MouseEvent('mouseenter'));
    expect(lit.at(-1)).toEqual([5]);
    mine.dispatchEvent(new MouseEvent('mouseleave'));
    report(5);
    expect(mine.classList.contains('bnb-memory-lit')).toBe(true);
    expect(other.tabIndex).toBe(-1);
    report(6);
    expect(mine.classList.contains('bnb-memory-lit')).toBe(false);
  });

  test('a card without figures says why, and the first tab is Memory if the cell asks for it', () => {
    expect(shown(doc()).open('memory').textContent).toContain('the output of another cell');
    const { root } = shown({ ...doc(GPU), show: ['memory'] });
    expect(root.querySelector('[role=tab][aria-selected=true]')!.textContent).toBe('Memory');
  });

  test.each<[string, unknown]>([
    ['a negative size', { ...GPU, kept: -1 }],
    ['a missing peak', { ...GPU, pools: [{ name: 'pool', before: 0, after: 0 }] }],
    ['a name that is no text', { ...GPU, arrays: [{ ...GPU.arrays[0], names: [7] }] }],
    ['a line that is no number', { ...GPU, copies: [{ ...GPU.copies[0], line: '5' }] }],
    ['too many arrays', { ...GPU, arrays: Array.from({ length: 1001 }, () => GPU.arrays[0]) }],
  ])('a document with %s is rejected', (_, memory) => {
    expect(readable({ ...doc(GPU) })).toBe(true);
    expect(readable({ ...doc(), memory })).toBe(false);
  });
});
