/**
 * The place in a launch that the Launch, Step and Footprint views of a card share: a program (axis 0 of the grid runs fastest), an
 * iteration of its loop, and a line. A view sets it and follows it; other code, such as a widget, can do the same.
 */

import type { Store } from './store';

/** A place in a launch. `line` is a line of the cell, or null. */
export interface Place {
  program: number;
  iteration: number;
  line: number | null;
}

/** The shared place. A listener gets the new place and the name of the view that set it. */
export class PlaceState {
  private place: Place = { program: 0, iteration: 0, line: null };
  private readonly listeners = new Set<(place: Place, from: string) => void>();

  get(): Place {
    return { ...this.place };
  }

  /** Changes a part of the place. Listeners hear of it only if something changed. */
  set(change: Partial<Place>, from = ''): void {
    const next = { ...this.place, ...change };
    const keys = Object.keys(next) as (keyof Place)[];
    if (keys.some((key) => next[key] !== this.place[key])) {
      this.place = next;
      [...this.listeners].forEach((listener) => listener(this.get(), from));
    }
  }

  /** Returns a function that stops the calls. */
  onChange(listener: (place: Place, from: string) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

const places = new WeakMap<Store, PlaceState>();

/** Returns the place of a card. */
export function placeOf(store: Store): PlaceState {
  const found = places.get(store) ?? new PlaceState();
  places.set(store, found);
  return found;
}
