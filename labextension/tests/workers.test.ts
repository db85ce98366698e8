/** The Workers view, and sweeps of several devices. */

import { describe, expect, it } from 'vitest';

import { problemOf } from '../src/core/documents';
import { sweepRecords } from '../src/core/plot/series';
import type { Document, Sweep, Workers } from '../src/core/schema';
import { fixture, shown } from './fixtures';

const WORKERS: Workers = {
  dashboard: 'http://127.0.0.1:8787/status',
  rows: [
    {
      worker: 'tcp://127.0.0.1:1',
      device: 'NVIDIA H200',
      launches: 3,
      compile_ms: 42,
      ms: 0.5,
      total_ms: 1.6,
      bytes: 3 << 20,
    },
    {
      worker: 'tcp://<b>2</b>',
      device: 'CPU',
      launches: 1,
      compile_ms: null,
      ms: 7,
      total_ms: 7,
      bytes: 512,
    },
  ],
};
const with_ = (workers: unknown): Document => ({ ...fixture('scale'), workers }) as Document;

describe('workers', () => {
  it('has a row for each worker, and a link to the dashboard', () => {
    const { open } = shown(with_(WORKERS));
    const panel = open('workers');
    const rows = [...panel.querySelectorAll('tbody tr')].map((row) =>
      [...row.children].map((cell) => cell.textContent),
    );
    expect(rows).toEqual([
      ['tcp://127.0.0.1:1', 'NVIDIA H200', '3', '42 ms', '500 µs', '1.6 ms', '3 MiB'],
      ['tcp://<b>2</b>', 'CPU', '1', 'from the cache', '7 ms', '7 ms', '512 B'],
    ]);
    expect(panel.querySelector('caption')!.textContent).toContain('4 launches on 2 workers');
    const link = panel.querySelector('a')!;
    expect(link.href).toBe(WORKERS.dashboard);
    expect(link.rel).toContain('noopener');
  });

  it('has no tab without a distributed launch', () => {
    expect(shown(fixture('scale')).root.querySelector('[data-key=workers]')).toBeNull();
  });

  it('accepts no address but that of a web page', () => {
    expect(problemOf(with_(WORKERS))).toBe('');
    expect(problemOf(with_({ ...WORKERS, dashboard: 'javascript:alert(1)' }))).toContain('a web page');
    expect(
      shown(with_({ ...WORKERS, dashboard: '' }))
        .open('workers')
        .querySelector('a'),
    ).toBeNull();
  });
});

describe('a sweep of several devices', () => {
  const three = { median: [1, 2], low: [1, 2], high: [1, 2] };
  const SWEEP: Sweep = {
    axis: 'n',
    values: [1, 2],
    unit: 'ms',
    series: [
      { label: 'add, H200', kind: 'kernel', device: 'H200', ...three, median: [3, 4] },
      { label: 'roof, H200', kind: 'roof', device: 'H200', ...three },
    ],
    device: '1 kind of device',
  };

  it('draws the roof of each device, which is never the best', () => {
    const doc = { ...fixture('scale'), sweep: SWEEP } as Document;
    expect(problemOf(doc)).toBe('');
    const panel = shown(doc).open('sweep');
    expect(panel.querySelectorAll('.bnb-line').length).toBeGreaterThanOrEqual(2);
    expect(
      [...panel.querySelectorAll('td')].filter((cell) => cell.textContent?.includes('best')).length,
    ).toBe(2);
    expect([...panel.querySelectorAll('.bnb-legend-list li')].map((li) => li.textContent?.trim())).toEqual([
      'add, H200',
      'roof, H200',
    ]);
  });

  it('names the device of each row of its table', () => {
    expect(sweepRecords(SWEEP).map((row) => row[row.length - 1])).toEqual([
      'device',
      'H200',
      'H200',
      'H200',
      'H200',
    ]);
  });
});
