/**
 * Loads the slow parts of a document after the card is shown. The first document omits disassembled machine code, and its time is that of
 * the launches in the cell. When the document has not changed for a while, this module requests the complete one, for which the kernel
 * repeats the launch, and saves it in the notebook.
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
    if (store.host.request && store.doc.deferred) {
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
    if (!answer.document.modified) {
      store.host.save?.(answer.document);
    }
  }
}
