/**
 * The viewer of an exported page. It mounts every document in the page, in the system's light or dark colours. It opens no network
 * connection.
 */

import '../style/index.css';

import { copyText } from './core/copy';
import { type Card, mount } from './core/mount';
import { mountComposed } from './core/mount_composed';
import { mountView } from './core/mount_view';
import { problemOf, readable } from './core/documents';
import { targetText, readTarget } from './core/link_target';

const scripts = document.querySelectorAll<HTMLScriptElement>(
  'script[type="application/vnd.blocknb.v1+json"]',
);
if (scripts.length) {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const applyTheme = (): void => void document.documentElement.classList.toggle('bnb-dark', dark.matches);
  dark.addEventListener('change', applyTheme);
  applyTheme();
}

// For widgets in an application without CodeMirror (lab/load_core.ts), which has colours of its own.
Object.assign(window, { blocknbViewer: { mountView } });

/** The cards of the page by their ids. */
const cards = new Map<string, Card>();

/** Shows what the address names: a card, and its state, `#card-2=v1;passes;pass:coalesce.12`. Another address is not for the cards. */
function followAddress(): void {
  const [id, ...state] = location.hash.slice(1).split('=');
  const card = cards.get(id);
  if (card) {
    document.getElementById(id)?.scrollIntoView();
    if (state.length) {
      card.open(readTarget(state.join('=')));
    }
  }
}

scripts.forEach((script, i) => {
  const id = `card-${i + 1}`;
  const container = document.createElement('div');
  container.id = id;
  script.after(container);
  try {
    const doc: unknown = JSON.parse(script.textContent ?? 'null');
    if (!readable(doc)) {
      throw new Error(problemOf(doc));
    }
    if (doc.widget) {
      mountComposed(container, doc.widget, { state: 'saved', copy: copyText });
      return;
    }
    const card = mount(container, doc, {
      state: 'saved',
      copy: copyText,
      link: (at) => `${location.href.replace(/#.*/, '')}#${id}=${targetText(at)}`,
    });
    cards.set(id, card);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    container.textContent = `The viewer cannot read the document in this page: ${why}.`;
  }
});

followAddress();
window.addEventListener('hashchange', followAddress);
