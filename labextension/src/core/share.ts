/** The foot of a card: the choice of the colours, a link to what it shows, and the card as one HTML file, where the host or its kernel can make them. */

import { button, h } from './dom';
import type { LinkTarget } from './link_target';
import { download } from './plot/export';
import { paletteChoice } from './palettes';
import type { Store } from './store';

/** Creates the foot of a card and appends it. `now` is what the card shows. */
export function shareFoot(root: HTMLElement, store: Store, now: () => LinkTarget): void {
  const said = h('span.bnb-quiet', { role: 'status' });
  const link = button('Copy link', () => store.run(copyLink(store, now(), said)), {
    title: 'Copy a link to what this card shows: tab, pass, step and selected line',
  });
  const file = button('Save HTML', () => store.run(saveFile(store, said)), {
    title: 'Save this card as one HTML file that needs no kernel',
  });
  const foot = h('footer.bnb-share', {}, paletteChoice(root, store), said, link, file);
  const paint = (): void => {
    link.hidden = !(store.host.copy && store.host.link);
    file.hidden = !(store.host.request && store.doc.model);
  };
  store.subscribe((change) => {
    if (change === 'host' || change === 'document') {
      paint();
    }
  });
  paint();
  root.append(foot);
}

/** Copies a link to what the card shows. If the browser does not allow it, the foot shows the link. */
async function copyLink({ host }: Store, target: LinkTarget, said: HTMLElement): Promise<void> {
  const link = host.link!(target);
  try {
    await host.copy!(link);
    said.textContent = 'The link is copied.';
  } catch (error) {
    said.textContent = `The link cannot be copied (${(error as Error).message}): ${link}`;
  }
}

async function saveFile(store: Store, said: HTMLElement): Promise<void> {
  said.textContent = 'The kernel makes the file…';
  try {
    const { page } = (await store.host.request!('export', {})) as { page: string };
    download(`${store.doc.kernel.replace(/[^\w.-]+/g, '_')}.html`, 'text/html', page);
    said.textContent = 'The file is saved.';
  } catch (error) {
    said.textContent = `The kernel could not make the file: ${(error as Error).message}`;
  }
}
