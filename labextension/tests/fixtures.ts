/** What the tests of the core share: documents of real kernels, hosts, and waiting for what is painted later. */

import { readFileSync } from 'node:fs';

import type { Host } from '../src/core/host';
import { type Card, mount } from '../src/core/mount';
import type { Document } from '../src/core/schema';

export type Name = 'scale' | 'versions' | 'diff' | 'bench';

/** A fresh copy of a document. */
export function fixture(name: Name): Document {
  return JSON.parse(readFileSync(`${import.meta.dirname}/fixtures/${name}.json`, 'utf8')) as Document;
}

export const saved: Host = { state: 'saved' };

export interface Shown {
  card: Card;
  root: HTMLElement;
  /** Opens a tab and gives its panel. */
  open(key: string): HTMLElement;
}

/** Mounts a document in the page. */
export function shown(doc: Document, host: Host = saved): Shown {
  const place = document.createElement('div');
  document.body.replaceChildren(place);
  const card = mount(place, doc, host);
  return {
    card,
    root: place,
    open(key) {
      const tab = place.querySelector<HTMLElement>(`[role=tab][data-key=${key}]`)!;
      tab.click();
      return document.getElementById(tab.getAttribute('aria-controls')!)!;
    },
  };
}

/** Waits until something holds; fails with what it was last. */
export async function until<T>(get: () => T, holds: (value: T) => boolean = Boolean): Promise<T> {
  let value = get();
  for (let i = 0; i < 200 && !holds(value); i++) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    value = get();
  }
  if (!holds(value)) {
    throw new Error(`still ${String(value).slice(0, 500)}`);
  }
  return value;
}

/** A generator of numbers below n that is the same in every run. */
export function random(seed: number): (n: number) => number {
  let state = seed;
  return (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
}
