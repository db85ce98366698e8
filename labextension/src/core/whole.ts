/**
 * What takes long to make (machine code read back) is not in the first document of a card: the card is painted without it, and when
 * nothing else has been asked for a while the kernel is asked for the rest. Then the notebook saves that.
 */

import type { Document } from './schema';
import type { Store } from './store';

/** Milliseconds without a change of the document before the rest is asked for. */
const PAUSE = 400;

/** Keeps the document of a store complete as far as a kernel is there; returns how to stop. */
export function completed(store: Store): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const look = (): void => {
    clearTimeout(timer);
    if (store.host.request && store.doc.views.some((view) => view.later?.length)) {
      timer = setTimeout(() => void ask(store), PAUSE);
    }
  };
  const stop = store.subscribe((change) => {
    if (change === 'document' || change === 'host') {
      look();
    }
  });
  look();
  return () => {
    clearTimeout(timer);
    stop();
  };
}

async function ask(store: Store): Promise<void> {
  const asked = store.doc;
  const answer = (await store.host.request?.('whole', {}).catch(() => null)) as { document: Document } | null;
  if (answer && store.doc === asked) {
    store.update(answer.document);
    store.host.save?.(answer.document);
  }
}
