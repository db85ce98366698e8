/** The event by which the live view of a widget tells its output what it shows. The output saves it. */

import type { Document } from '../core/schema';

/** The name of the event. It bubbles. */
export const SHOWN_EVENT = 'blocknb:shown';

/**
 * The detail of the event: the id of the view's model, its traits, and its document. `contentOf` returns what a widget of another package
 * shows now, in words or as a picture; null if it has neither.
 */
export interface ShownDetail {
  model: string;
  state: Record<string, string | number | null>;
  document: Document;
  contentOf(model: string): Promise<{ text: string } | { png: string } | null>;
}
