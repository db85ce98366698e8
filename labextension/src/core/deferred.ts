/**
 * Loads the slow parts of a document after the card is shown. The first document omits disassembled machine code. When the document
 * has not changed for a while, this module requests the complete one and saves it in the notebook.
 */

import type { Document } from './schema';
import type { Store } from './store';

/** Milliseconds without a change of the document before the request. */
const IDLE_MS = 400;

/** Requests the deferred parts of a document whenever a kernel is connected. Returns a function that stops this. */
export function fetchDeferred(store: Store): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const schedule = (): void => {
    clearTimeout(timer);
    if (store.host.request && store.doc.views.some((view) => view.later?.length)) {
      timer = setTimeout(() => store.run(requestWhole(store)), IDLE_MS);
    }
  };
  const stop = store.subscribe((change) => {
    if (change === 'document' || change === 'host') {
      schedule();
    }
  });
  schedule();
  return () => {
    clearTimeout(timer);
    stop();
  };
}

async function requestWhole(store: Store): Promise<void> {
  const requested = store.doc;
  const answer = (await store.host.request?.('whole', {}).catch(() => null)) as { document: Document } | null;
  if (answer && store.doc === requested) {
    store.update(answer.document);
    store.host.save?.(answer.document);
  }
}
