/**
 * What the surroundings of a card can do. A notebook with a kernel, a saved notebook and an exported page differ in this alone;
 * the core shows a control only where its capability exists.
 */

import type { Document, Listing } from './schema';

/** live: a kernel answers; disconnected: it did, and is gone; saved: nobody was ever asked. */
export type HostState = 'live' | 'disconnected' | 'saved';

/** found: a cell holds the kernel's text; changed: the cell it came from holds another text by now. */
export type CellState = 'found' | 'changed';

export interface Host {
  readonly state: HostState;
  /** Where the kernel's text is in the notebook; absent where there is no notebook. */
  readonly cell?: CellState | null;
  /** Lights up lines of the input cell (null: none). Absent where there is no cell. */
  linkSource?(lines: readonly number[] | null): void;
  /** Calls back with the line under the pointer or cursor of the input cell; returns how to stop. */
  onSourceLine?(callback: (line: number | null) => void): () => void;
  /** Sends a request to the kernel side of the card and resolves with its answer. */
  request?(what: string, content: Record<string, unknown>): Promise<unknown>;
  /** Interrupts the kernel. */
  cancel?(): void;
  /** A listing that the document left out. */
  fetchBlob?(hash: string): Promise<Listing>;
  copy?(text: string): void;
  /** Called with a document the card should now be saved as. */
  save?(doc: Document): void;
}
