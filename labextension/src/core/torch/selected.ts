/** What the views of a compiled model share: the selected boxes of the graph, the open cards, and their documents. */

import type { Host } from '../host';
import { readable } from '../documents';
import type { Document, Listing, TorchPart } from '../schema';
import type { Store } from '../store';

/** A box of a graph, by the indices of both. */
export interface Place {
  graph: number;
  group: number;
}

/** The selection of one page. */
export class TorchSelection {
  /** The selected row, or -1. */
  row = -1;
  /** The row whose card the Kernels view opens next, or -1. */
  opened = -1;
  /** The selected boxes. Two of them are a pair that was not fused. */
  places: readonly Place[] = [];
  private readonly listeners = new Set<() => void>();
  private readonly cards = new Map<number, Promise<Document>>();

  constructor(private readonly store: Store) {
    store.subscribe((change) => {
      if (change === 'document') {
        this.cards.clear(); // those of another run
        this.row = -1;
        this.places = [];
        this.notify();
      }
    });
  }

  get part(): TorchPart {
    return this.store.doc.torch!;
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Selects a row and the boxes that launch it. */
  selectRow(row: number): void {
    this.row = row;
    this.places = this.placesOf(row);
    this.notify();
  }

  /** Opens the card of a row in the Kernels view. */
  openCard(row: number): void {
    this.opened = row;
    this.store.open('kernels');
    this.selectRow(row);
  }

  /** Selects a box, and the row that it launches. */
  selectGroup(graph: number, group: number): void {
    this.row = this.part.graphs[graph].groups[group].row;
    this.places = this.row < 0 ? [{ graph, group }] : this.placesOf(this.row);
    this.notify();
  }

  /** Selects two boxes that were not fused. */
  selectPair(graph: number, groups: readonly [number, number]): void {
    this.row = -1;
    this.places = groups.map((group) => ({ graph, group }));
    this.notify();
  }

  /** The boxes of a row. */
  private placesOf(row: number): Place[] {
    return this.part.graphs.flatMap(({ groups }, graph) =>
      groups.flatMap((one, group) => (one.row === row ? [{ graph, group }] : [])),
    );
  }

  /** Fetches the document of a row's card: from the kernel, else from the page's own document. */
  card(row: number): Promise<Document> {
    const { host } = this.store;
    let found = this.cards.get(row);
    if (!found) {
      found = this.load(row, host);
      this.cards.set(row, found);
      found.catch(() => this.cards.delete(row));
    }
    return found;
  }

  private async load(row: number, host: Host): Promise<Document> {
    const saved = this.part.cards?.[String(row)];
    if (!host.request) {
      if (!saved) {
        throw new Error('The saved page does not contain this card. Run the cell again to open it.');
      }
      return saved;
    }
    const { document } = (await host.request('card', { row })) as { document: unknown };
    if (!readable(document)) {
      throw new Error('The kernel has sent a card that this version cannot show.');
    }
    this.keep(row, document);
    return document;
  }

  /** Adds a card to the document that the notebook saves, as long as that stays small. */
  private keep(row: number, card: Document): void {
    const { doc, host } = this.store;
    const cards = { ...this.part.cards, [String(row)]: card };
    const kept = { ...doc, torch: { ...this.part, cards } };
    if (JSON.stringify(kept).length < LARGEST) {
      this.store.doc = kept;
      host.save?.(kept);
    }
  }

  private notify(): void {
    this.listeners.forEach((listener) => listener());
  }
}

/** Characters of a saved document with cards. */
const LARGEST = 450_000;

const known = new WeakMap<Store, TorchSelection>();

/** Returns the selection that the views of a page share. */
export function selectionOf(store: Store): TorchSelection {
  let found = known.get(store);
  if (!found) {
    found = new TorchSelection(store);
    known.set(store, found);
  }
  return found;
}

/** The host of the card of a row: its requests go through the connection of the page. */
export function cardHost(host: Host, row: number): Host {
  const { request } = host;
  const ask = (
    what: string,
    content: Record<string, unknown>,
    progress?: (content: Record<string, unknown>) => void,
  ): Promise<unknown> => request!('of_card', { row, ask: { ...content, what } }, progress);
  return {
    state: host.state,
    copy: host.copy,
    ...(request && {
      request: ask,
      cancel: host.cancel,
      fetchBlob: async (hash: string) =>
        ((await ask('blob', { hash })) as { listing: unknown }).listing as Listing,
    }),
  };
}
