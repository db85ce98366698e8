/** The interface of a view: a tab of the card, mounted when first opened and updated when the document or the selection changes. */

import type { ViewLink } from '../link_target';
import type { Document } from '../schema';
import type { Change, Store } from '../store';

/** A mounted view. */
export interface Mounted {
  /** Repaints after a change of the store. */
  update(change: Change): void;
  /** Handles a key while this view is visible and no input field has the focus. Returns whether it used the key. */
  key?(event: KeyboardEvent): boolean;
  /** The keys that `key` handles, with their descriptions. */
  readonly keys?: readonly (readonly [string, string])[];
  /** Moves to the next or the previous step of the view: a pass, a program, a line. */
  advance?(by: 1 | -1): void;
  /** What a link to the card says about this view. */
  readonly link?: ViewLink;
  dispose?(): void;
}

/** The declaration of a view. */
export interface ViewSpec {
  key: string;
  title: string;
  /** What the view shows, as the tooltip of its tab. */
  tooltip: string;
  /** Returns the message of an empty view, or null if the view has content. */
  empty(doc: Document, store: Store): string | null;
  /** Mounts the view. `from` is another instance of the view, whose choices the new one takes over. */
  mount(panel: HTMLElement, store: Store, from?: Mounted): Mounted;
  /** Creates the controls that measure what an empty view shows. Absent if there is nothing to measure. */
  measure?(store: Store): HTMLElement;
}
