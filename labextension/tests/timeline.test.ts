import { gzipSync } from 'node:zlib';

import { describe, expect, test } from 'vitest';

import type { Document } from '../src/core/schema';
import { describeSpan, drawing, type Packed, read, ticks } from '../src/core/views/timeline';
import { fixture, shown, until } from './fixtures';

const facts: Packed = {
  lanes: ['a, b 0', 'a, b 1', 'producer', 'consumer', 'consumer MMA'],
  words: ['a, b', 'wgmma.m64n128k16', 'full', ''],
  spans: [
    [0, 0, 0, 1212, 1724, 0, 6, 75, 0, 0, 32768],
    [1, 0, 0, 1724, 2236, 0, 6, 75, 1, 1, 32768],
    [3, 4, 0, 1212, 0, 2, 7, 252, -1, -1, 0],
    [4, 1, 1212, 1724, 0, 1, 7, 119, 0, 0, 0],
    [4, 1, 1724, 2236, 0, 1, 7, 119, 1, 1, 0],
    [3, 3, 2236, 2500, 0, 3, 9, 186, -1, -1, 1024],
  ],
  busy: 0.4,
  cut: true,
  about: 'Nothing is measured.',
};

function doc(): Document {
  const packed = gzipSync(JSON.stringify(facts)).toString('base64');
  return { ...fixture('scale'), timeline: { view: 0, packed } };
}

describe('the timeline', () => {
  test('a sentence describes a span', () => {
    const texts = read(facts).spans.map((span) => describeSpan(facts.lanes, span));
    expect(texts[0]).toBe(
      'copy 0 of a, b to stage 0: cycles 0 to 1,212, 32,768 bytes, in use until cycle 1,724',
    );
    expect(texts[2]).toBe('consumer waits for full: cycles 0 to 1,212');
    expect(texts[4]).toBe('consumer: wgmma.m64n128k16 of copy 1, stage 1: cycles 1,724 to 2,236');
    expect(texts[5]).toBe('consumer: store: cycles 2,236 to 2,500, 1,024 bytes');
  });

  test('an MMA has the colour and number of the stage that it reads, at its position in time', () => {
    const element = document.createElement('div');
    element.append(...drawing(read(facts), 760));
    const boxes = [...element.querySelectorAll('.bnb-span-mma')];
    const fills = (shapes: Iterable<Element>): unknown[] =>
      [...shapes].map((box) => box.getAttribute('fill'));
    expect(fills(boxes)).toEqual(fills(element.querySelectorAll('.bnb-span-copy')));
    expect(new Set(fills(boxes)).size).toBe(2);
    const number = (box: Element, name: string): number => Number(box.getAttribute(name));
    const copy = element.querySelector('.bnb-span-copy')!;
    expect(number(boxes[0], 'x')).toBeCloseTo(number(copy, 'x') + number(copy, 'width') + 0.5, 3);
    expect(number(boxes[1], 'x')).toBeGreaterThan(number(boxes[0], 'x'));
    expect([...element.querySelectorAll('.bnb-span-number')].map((t) => t.textContent)).toEqual(['0', '1']);
    expect([...element.querySelectorAll('text')].map((t) => t.textContent)).toContain('consumer MMA');
  });

  test.each([1, 4])('the tick labels at both ends of the axis are not clipped (zoom %i)', (zoom) => {
    const [, chart] = drawing(
      { ...read(facts), spans: [{ ...read(facts).spans[0], until: 10_000 }] },
      760,
      zoom,
    );
    const ends = [...chart.querySelectorAll('text')].filter((text) => /^(0|10,000)$/.test(text.textContent));
    const places = ends.map((text) => Number(text.getAttribute('x')));
    expect(places.length).toBe(2);
    expect(Math.min(...places)).toBeGreaterThan(3);
    expect(Math.max(...places)).toBeLessThan(Number(chart.getAttribute('width')) - 20);
  });

  test('the arrow keys step through the spans, describe them and highlight their lines', async () => {
    const { root, open, card } = shown(doc());
    const panel = open('timeline');
    await until(() => panel.querySelector('svg.bnb-timeline'));
    expect(panel.textContent).toContain('MMA in flight 40 % of the time; only the beginning is shown');
    const press = (key: string): boolean =>
      panel.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    press('ArrowRight');
    press('ArrowRight');
    expect(panel.querySelector('[role=status]')!.textContent).toContain('copy 1 of a, b to stage 1');
    expect(root.querySelectorAll('.bnb-span-now').length).toBeGreaterThan(0);
    const zoom = panel.querySelector('select')!;
    zoom.value = '4';
    zoom.dispatchEvent(new Event('change'));
    expect(panel.querySelector<SVGElement>('.bnb-span-now')!.dataset.span).toBe('1');
    press('ArrowLeft');
    expect(panel.querySelector('[role=status]')!.textContent).toContain('copy 0 of a, b');
    card.dispose();
  });

  test('a card without a timeline says why', async () => {
    const { open } = shown({ ...fixture('scale'), timeline: { why: 'The kernel has no MMA.' } });
    expect(open('timeline').textContent).toContain('The kernel has no MMA.');
  });

  test('ticks are round', () => {
    expect([ticks(2500, 5), ticks(11_600, 5), ticks(100, 10)]).toEqual([500, 5000, 10]);
  });
});
