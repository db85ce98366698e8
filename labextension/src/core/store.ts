/**
 * What the views of one card share: the document, what is selected in it, and the listings read so far.
 *
 * A selection is a source line, or an op, or both; whoever shows lines lights up those that belong to it. Views listen and are told
 * what changed; they never talk to each other.
 */

import type { Host } from './host';
import type { Document, Listing, Stage, View } from './schema';
import { unpack } from './schema';

/** `lines` are source lines of the cell; `op` an op's id; `from` the view where it was chosen, so that it does not scroll itself. */
export interface Selection {
  lines: readonly number[];
  op: number | null;
  from: string;
}

export type Change = 'document' | 'selection' | 'view' | 'host';

export class Store {
  /** Index of the target looked at. */
  view = 0;
  /** What the pointer is on, and what stays lit when it has left. */
  hovered: Selection | null = null;
  pinned: Selection | null = null;

  private readonly listeners = new Set<(change: Change) => void>();
  private readonly listings = new Map<string, Promise<Listing | null>>();
  private stopSource?: () => void;

  constructor(
    public doc: Document,
    public host: Host,
  ) {
    this.view = firstView(doc);
    this.listen();
  }

  /** The target looked at. A document that compiles nothing has none, and then this is empty. */
  get current(): View {
    return this.doc.views[this.view] ?? { role: 'view', label: '', place: '' };
  }

  get stages(): Stage[] {
    return this.current.stages ?? [];
  }

  /** What is lit: where the pointer is, else what was pinned. */
  get selection(): Selection | null {
    return this.hovered ?? this.pinned;
  }

  subscribe(listener: (change: Change) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  hover(selection: Selection | null): void {
    this.hovered = selection;
    this.lit();
  }

  pin(selection: Selection | null): void {
    this.pinned = selection;
    this.hovered = null;
    this.lit();
  }

  look(view: number): void {
    if (view !== this.view && this.doc.views[view]) {
      this.view = view;
      this.tell('view');
    }
  }

  /** A new document in the place of the old one: a recompile, or a reload. The target looked at stays if it is still there. */
  update(doc: Document): void {
    const target = this.current?.target;
    this.doc = doc;
    const same = doc.views.findIndex((v) => v.target === target);
    this.view = same >= 0 ? same : firstView(doc);
    this.hovered = null;
    this.tell('document');
  }

  connect(host: Host): void {
    this.stopSource?.();
    this.host = host;
    this.listen();
    this.tell('host');
  }

  /** The listing of a blob; null when neither the document nor the kernel has it. */
  listing(hash: string | null | undefined): Promise<Listing | null> {
    if (!hash) {
      return Promise.resolve(null);
    }
    let found = this.listings.get(hash);
    if (!found) {
      const packed = this.doc.blobs[hash];
      found = packed
        ? unpack(packed, (base) => this.listing(base))
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
    this.host.linkSource?.(null);
    this.listeners.clear();
  }

  private listen(): void {
    this.stopSource = this.host.onSourceLine?.((line) => {
      this.hovered = line === null ? null : { lines: [line], op: null, from: 'source' };
      this.tell('selection');
    });
  }

  private lit(): void {
    const lines = this.selection?.lines;
    this.host.linkSource?.(lines?.length ? lines : null);
    this.tell('selection');
  }

  private tell(change: Change): void {
    for (const listener of [...this.listeners]) {
      listener(change);
    }
  }
}

/** The view to begin with: the first that has IR of a GPU, else the first that was compiled at all. */
function firstView(doc: Document): number {
  const gpu = doc.views.findIndex((v) => v.code?.ptx !== undefined || v.target?.startsWith('sm_'));
  return Math.max(0, gpu >= 0 ? gpu : doc.views.findIndex((v) => v.stages));
}
