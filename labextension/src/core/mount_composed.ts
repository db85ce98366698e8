/**
 * Mounts a composition of widgets from its document alone: the views of blocknb with their saved state, in rows and columns. It is what a
 * page without the kernel shows. A widget of another package is the text of its state.
 */

import { h } from './dom';
import type { Host } from './host';
import { type MountedView, mountView, type ViewState } from './mount_view';
import type { Composed, WidgetPart } from './schema';

/** Mounts a composition. Returns a function that removes it. */
export function mountComposed(element: HTMLElement, widget: WidgetPart, host: Host): () => void {
  const mounted: MountedView[] = [];
  const build = (part: Composed): HTMLElement => {
    if ('view' in part) {
      const place = h('div.bnb-composed-view');
      const state = part.state as Partial<ViewState>;
      mounted.push(mountView(place, part.view, widget.documents[part.document], host, state, () => {}));
      return place;
    }
    if ('box' in part) {
      return h(`div.bnb-composed-${part.box}`, {}, ...part.children.map(build));
    }
    if ('png' in part) {
      return h('img.bnb-composed-picture', {
        src: `data:image/png;base64,${part.png}`,
        alt: 'Saved picture',
      });
    }
    return h(
      'p.bnb-composed-text',
      { hidden: !part.text, title: 'This widget needs a running kernel.' },
      part.text,
    );
  };
  element.replaceChildren(build(widget.root));
  return () => {
    mounted.forEach((view) => view.dispose());
    element.replaceChildren();
  };
}
