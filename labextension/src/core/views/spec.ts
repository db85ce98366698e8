/** What a view is: a tab of the card, made when it is first opened and told when the document or the selection changes. */

import type { Document } from '../schema';
import type { Change, Store } from '../store';

export interface Mounted {
  /** What changed is in the store; a view repaints what depends on it. */
  update(change: Change): void;
  /** A key that no field wanted, while this view is the one shown; returns whether it was used. */
  key?(event: KeyboardEvent): boolean;
  /** The keys that `key` uses, with what they do. */
  readonly keys?: readonly (readonly [string, string])[];
  dispose?(): void;
}

export interface ViewSpec {
  key: string;
  title: string;
  /** Why the view would be empty, in words for the user; null when it has something to show. */
  empty(doc: Document, store: Store): string | null;
  mount(panel: HTMLElement, store: Store): Mounted;
}
