/** Links to cards in notebooks: the address of the notebook, the cell's id in the fragment, and the place in the card in the query. */

import { type LinkTarget, targetText, readTarget } from '../core/link_target';

/** The query as it was when the page was loaded; the application changes the address later. */
const opened = new URL(window.location.href);

/** Returns the address of a cell's card. `path` is the notebook's path on the server. */
export function cardAddress(path: string, cell: string, place: LinkTarget, from = window.location): string {
  const [, base, app] = /^(.*?)\/(lab|notebooks|tree|doc)(?:\/|$)/.exec(from.pathname) ?? [null, '', 'lab'];
  const encoded = path.split('/').map(encodeURIComponent).join('/');
  const page = app === 'notebooks' || app === 'tree' ? `notebooks/${encoded}` : `lab/tree/${encoded}`;
  return `${from.origin}${base}/${page}?blocknb=${targetText(place)}#cell-id=${encodeURIComponent(cell)}`;
}

/** Returns the state that the page's address names for the card of a cell: null if it cannot be read, undefined if there is none. */
export function requestedTarget(cell: string | undefined, at: URL = opened): LinkTarget | null | undefined {
  const named = new URLSearchParams(at.hash.slice(1)).get('cell-id');
  const text = at.searchParams.get('blocknb');
  return cell !== undefined && named === cell && text !== null ? readTarget(text) : undefined;
}
