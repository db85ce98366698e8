/**
 * The capabilities of the environment of a card: a notebook with a kernel, a saved notebook, or an exported page. The core shows a
 * control only where the host has the capability that it needs.
 */

import type { LinkTarget } from './link_target';
import type { Document, Listing } from './schema';

/** live: a kernel answers. disconnected: the kernel answered before and has stopped. saved: the card has had no kernel. */
export type HostState = 'live' | 'disconnected' | 'saved';

/** found: a cell contains the kernel's source. changed: no cell contains it any more. */
export type CellState = 'found' | 'changed';

/** What follows the run of a cell: the next cell, the same cell, or a new cell below. */
export type RunCell = 'next' | 'stay' | 'insert';

/** The environment of a card. A missing method is a missing capability. */
export interface Host {
  readonly state: HostState;
  /** Whether a cell of the notebook contains the kernel's source. Absent without a notebook. */
  readonly cell?: CellState | null;
  /** Highlights lines of the input cell (null: none), and lines of helpers in other cells. Absent without a cell. */
  highlightSource?(lines: readonly number[] | null, inner: readonly number[]): void;
  /** Reports the line under the pointer or cursor of the input cell. Returns a function that stops the reports. */
  onSourceLine?(callback: (line: number | null) => void): () => void;
  /** Reports the line of a helper in another cell under the pointer or cursor. Returns a function that stops the reports. */
  onHelperLine?(callback: (inner: number | null) => void): () => void;
  /** Sends a request to the kernel and resolves with its answer. `progress` receives what the kernel reports before it. */
  request?(
    what: string,
    content: Record<string, unknown>,
    progress?: (content: Record<string, unknown>) => void,
  ): Promise<unknown>;
  /** Interrupts the kernel. */
  cancel?(): void;
  /** Fetches a listing that the document does not contain. */
  fetchBlob?(hash: string): Promise<Listing>;
  /** Returns a link that opens the card at a place. */
  link?(target: LinkTarget): string;
  /** Copies a text to the clipboard. Rejects if the browser does not allow it. */
  copy?(text: string): Promise<void>;
  /** Runs the cell of the card, as JupyterLab does for Shift+Enter (next), Ctrl+Enter (stay) and Alt+Enter (insert). */
  runCell?(then: RunCell): void;
  /** Opens a view of the card in a panel beside the notebook. */
  dock?(view: string, title: string): void;
  /** Replaces the document that the notebook saves for this card. */
  save?(doc: Document): void;
}
