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

/** How long to wait for what comes: only a machine under much load needs more than a few milliseconds. */
export const PATIENT = { timeout: 20_000, interval: 10 };

/** Waits until something holds; fails with what it was last. */
export async function until<T>(get: () => T, holds: (value: T) => boolean = Boolean): Promise<T> {
  let value = get();
  const end = performance.now() + PATIENT.timeout;
  while (!holds(value) && performance.now() < end) {
    await new Promise((resolve) => setTimeout(resolve, PATIENT.interval));
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
