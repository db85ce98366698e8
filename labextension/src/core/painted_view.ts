/** Views without state of their own: what they show follows from the document. */

import { h } from './dom';
import type { Document } from './schema';
import type { Store } from './store';
import type { Mounted, ViewSpec } from './views/spec';

/**
 * Mounts a view that `content` paints now and after each change of the document. `content` returns null if the document has nothing to
 * show; the panel then tells why.
 */
export function paintedView(
  spec: ViewSpec,
  panel: HTMLElement,
  store: Store,
  content: (doc: Document) => (Node | string)[] | null,
): Mounted {
  const paint = (): void => {
    const empty = (): Node => h('p.bnb-empty', {}, spec.empty(store.doc, store) ?? '');
    panel.replaceChildren(...(content(store.doc) ?? [empty()]));
  };
  paint();
  return {
    update(change) {
      if (change === 'document') {
        paint();
      }
    },
  };
}
