/**
 * The state that the views of one card share: the document, the selection, and the decoded listings.
 *
 * A selection is a source line, an op, or both. Every view highlights the lines of the selection. Views subscribe to the store and do
 * not know each other.
 */

import { callsOf, inlinedAt } from './helpers';
import type { Host } from './host';
import { Budget, inflate, TooLarge, unpack } from './inflate';
import type { Check } from './check';
import type { Card } from './mount';
import { lastPalette, type Palette } from './palettes';
import type { Document, Listing, Stage, View } from './schema';
import { Shown } from './shown_parts';
import { upgrade } from './upgrade';

/**
 * `lines`: source lines of the cell. `inner`: lines of helpers in other cells (see helpers.ts). `op`: the id of an op, and `ops` those of more. `from`: the view where the user selected it, which
 * does not scroll.
 */
export interface Selection {
  lines: readonly number[];
  op: number | null;
  ops?: readonly number[];
  inner?: readonly number[];
  from: string;
}

/** The kinds of changes that the store reports. */
export type Change = 'document' | 'selection' | 'view' | 'host' | 'problem' | 'display';

/** How listings are shown. `wrap`: long lines are broken. `unified`: a comparison has one column. `palette`: the colours of pictures. */
export interface Display {
  wrap: boolean;
  unified: boolean;
  palette: Palette;
}

/** The latest settings of the page, with which the next card begins. */
let latestDisplay: Display = { wrap: true, unified: false, palette: lastPalette() };

/** The longest chain of differences. A kernel has fewer stages. */
const MOST_BASES = 1000;

/** The shared state of one card. */
export class Store {
  /** Index of the selected target. */
  view = 0;
  /** The selection under the pointer. */
  hovered: Selection | null = null;
  /** The selection that stays when the pointer leaves. */
  pinned: Selection | null = null;

  /** Why a part of the document is not shown: a sentence, and whether the user may ask for it. */
  problem: { text: string; asks: boolean } | null = null;

  /** The settings of the listings of this card. */
  display = latestDisplay;

  /** What the views show, for the traits of a widget. */
  readonly shown = new Shown();

  /** Opens a view, and in it a level of code. The card sets this. */
  open: (view: string, level?: string) => void = () => {};
  /** Mounts another card inside of a view. The card sets this. */
  mountCard: (element: HTMLElement, doc: Document, host: Host) => Card = () => {
    throw new Error('This page mounts no cards.');
  };
  /** The level of machine code that `open` asked for; the Code view takes it. */
  requestedLevel: string | null = null;

  private budget = new Budget();
  private readonly listeners = new Set<(change: Change) => void>();
  private readonly listings = new Map<string, Promise<Listing | null>>();
  private stopSource?: () => void;

  /** The document, in the newest schema. */
  doc: Document;

  constructor(
    doc: Document,
    public host: Host,
  ) {
    this.doc = upgrade(doc);
    this.view = firstView(doc);
    this.watchSource();
  }

  /** The selected target. It is empty if the document has no compiled code. */
  get current(): View {
    return this.doc.views[this.view] ?? { role: 'view', label: '', place: '' };
  }

  get stages(): Stage[] {
    return this.current.stages ?? [];
  }

  /** The highlighted selection: the hovered one, otherwise the pinned one. */
  get selection(): Selection | null {
    return this.hovered ?? this.pinned;
  }

  subscribe(listener: (change: Change) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  hover(selection: Selection | null): void {
    this.hovered = selection;
    this.selectionChanged();
  }

  pin(selection: Selection | null): void {
    this.pinned = selection;
    this.hovered = null;
    this.selectionChanged();
  }

  selectView(view: number): void {
    if (view !== this.view && this.doc.views[view]) {
      this.view = view;
      this.notify('view');
    }
  }

  /** Replaces the document after a recompilation or a reload. Keeps the selected target if the new document has it. */
  update(doc: Document): void {
    const target = this.current?.target;
    this.doc = upgrade(doc);
    this.problem = null;
    const same = doc.views.findIndex((v) => v.target === target);
    this.view = same >= 0 ? same : firstView(doc);
    this.hovered = null;
    this.notify('document');
  }

  setDisplay(display: Display): void {
    this.display = latestDisplay = display;
    this.notify('display');
  }

  connect(host: Host): void {
    this.stopSource?.();
    this.host = host;
    this.watchSource();
    this.notify('host');
  }

  /** Returns the listing of a blob, or null if neither the document nor the kernel has it, or if it cannot be shown (`problem`). */
  listing(hash: string | null | undefined): Promise<Listing | null> {
    if (!hash) {
      return Promise.resolve(null);
    }
    const looping = this.isCyclic(hash)
      ? Promise.reject<null>(new Error('The texts of this document refer to each other in a circle.'))
      : this.decoded(hash);
    return looping.catch((error: unknown) => {
      this.fail(error);
      return null;
    });
  }

  /** Decodes a packed part of the document. Null if it cannot be shown (`problem`). */
  async inflated(packed: string, check: Check): Promise<unknown> {
    try {
      return await inflate(packed, this.budget, check);
    } catch (error) {
      this.fail(error);
      return null;
    }
  }

  /** Runs the work of a view. An error becomes the `problem`. */
  run(work: Promise<unknown>): void {
    work.catch((error: unknown) => this.fail(error));
  }

  /** Shows the parts that are too large to be shown unasked. */
  showLarge(): void {
    this.budget.raise();
    this.problem = null;
    this.notify('document');
  }

  /** Reports that a part of the document cannot be shown. */
  fail(error: unknown): void {
    const asks = error instanceof TooLarge && error.asks;
    const text = error instanceof Error ? error.message : String(error);
    if (!this.problem?.asks) {
      this.problem = { text: asks ? text : `A part of this card cannot be shown. ${text}`, asks };
      this.notify('problem');
    }
  }

  /** Tells whether the bases of a blob lead back to it. */
  private isCyclic(hash: string): boolean {
    const seen = new Set<string>();
    for (let next: string | undefined = hash; next; next = this.doc.blobs[next]?.split(' ')[1]) {
      if (seen.has(next) || seen.size >= MOST_BASES) {
        return true;
      }
      seen.add(next);
    }
    return false;
  }

  private decoded(hash: string): Promise<Listing | null> {
    let found = this.listings.get(hash);
    if (!found) {
      const packed = this.doc.blobs[hash];
      found = packed
        ? unpack(packed, this.budget, (base) => this.decoded(base))
        : (this.host.fetchBlob?.(hash) ?? Promise.resolve(null));
      this.listings.set(hash, found);
      found.then(
        (listing) => listing ?? this.listings.delete(hash),
        () => this.listings.delete(hash),
      );
    }
    return found;
  }

  dispose(): void {
    this.stopSource?.();
    this.host.highlightSource?.(null, []);
    this.listeners.clear();
  }

  private watchSource(): void {
    const stops = [
      this.host.onSourceLine?.((line) => {
        this.hover(line === null ? null : { lines: [line], op: null, from: 'source' });
      }),
      this.host.onHelperLine?.((inner) => {
        this.hover(
          inner === null
            ? null
            : { lines: callsOf(this.doc, inner), op: null, inner: [inner], from: 'source' },
        );
      }),
    ];
    this.stopSource = () => stops.forEach((stop) => stop?.());
  }

  private selectionChanged(): void {
    const { lines = [], inner } = this.selection ?? {};
    // Machine code knows the line of the call only, so all lines that are inlined there belong to it.
    const helpers = inner?.length ? inner : inlinedAt(this.doc, lines);
    this.host.highlightSource?.(lines.length ? lines : null, helpers);
    this.notify('selection');
  }

  private notify(change: Change): void {
    for (const listener of [...this.listeners]) {
      try {
        listener(change);
      } catch (error) {
        if (change !== 'problem') {
          this.fail(error);
        }
      }
    }
  }
}

/** Returns the first view with complete GPU code, otherwise the first compiled one. */
function firstView(doc: Document): number {
  const gpu = doc.views.findIndex(
    (v) => !v.error && (v.code?.ptx !== undefined || v.target?.startsWith('sm_')),
  );
  return Math.max(0, gpu >= 0 ? gpu : doc.views.findIndex((v) => v.stages));
}
