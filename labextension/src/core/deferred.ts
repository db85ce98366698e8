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
  let shown = 0; // counts the documents
  const schedule = (): void => {
    clearTimeout(timer);
    if (store.host.request && store.doc.deferred) {
      const before = shown;
      timer = setTimeout(() => store.run(requestWhole(store, () => shown === before)), IDLE_MS);
    }
  };
  const stop = store.subscribe((change) => {
    shown += change === 'document' ? 1 : 0;
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

/**
 * Requests the complete document, and shows it if `isCurrent` still holds. A part that a view has added to the document meanwhile, such as
 * the values of the Step view, is in the kernel's document, too.
 */
async function requestWhole(store: Store, isCurrent: () => boolean): Promise<void> {
  let answer: { document: Document };
  try {
    answer = (await store.host.request!('whole', {})) as { document: Document };
  } catch (error) {
    if (store.host.request) {
      store.fail(error); // the views go on to wait for parts; without a kernel, the card says so itself
    }
    return;
  }
  if (isCurrent()) {
    store.update(answer.document);
    if (!answer.document.modified) {
      store.host.save?.(answer.document);
    }
  }
}
