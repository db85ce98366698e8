/** Shared helpers of the core's tests: documents of real kernels, hosts, and waiting for asynchronous updates. */

import { readFileSync } from 'node:fs';

import type { Host } from '../src/core/host';
import { type Card, mount } from '../src/core/mount';
import type { Document } from '../src/core/schema';

/** The names of the fixture documents. */
export type Name = 'scale' | 'versions' | 'diff' | 'bench' | 'learn';

/** Returns a fresh copy of a document. */
export function fixture(name: Name): Document {
  return JSON.parse(readFileSync(`${import.meta.dirname}/fixtures/${name}.json`, 'utf8')) as Document;
}

/** A host without capabilities. */
export const saved: Host = { state: 'saved' };

/** A mounted card. */
export interface Shown {
  card: Card;
  root: HTMLElement;
  /** Opens a tab and returns its panel. */
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

/** The time limit of waits. Only a loaded machine needs more than a few milliseconds. */
export const PATIENT = { timeout: 60_000, interval: 10 };

/** Waits until a value satisfies a condition. Fails with the last value. */
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

/** Returns a deterministic generator of numbers below n. */
export function random(seed: number): (n: number) => number {
  let state = seed;
  return (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
}
