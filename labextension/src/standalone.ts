/**
 * The viewer of an exported page. It mounts every document in the page, in the system's light or dark colours. It opens no network
 * connection.
 */

import '../style/index.css';

import { mount } from './core/mount';
import { mountView } from './core/mount_view';
import { problemOf, readable } from './core/documents';

const documents = document.querySelectorAll<HTMLScriptElement>(
  'script[type="application/vnd.blocknb.v1+json"]',
);
if (documents.length) {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const applyTheme = (): void => void document.documentElement.classList.toggle('bnb-dark', dark.matches);
  dark.addEventListener('change', applyTheme);
  applyTheme();
}

// For widgets in an application without CodeMirror (lab/load_core.ts), which has colours of its own.
Object.assign(window, { blocknbViewer: { mountView } });

for (const script of documents) {
  const container = document.createElement('div');
  script.after(container);
  try {
    const doc: unknown = JSON.parse(script.textContent ?? 'null');
    if (!readable(doc)) {
      throw new Error(problemOf(doc));
    }
    mount(container, doc, {
      state: 'saved',
      copy: (text) => void navigator.clipboard?.writeText(text),
    });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    container.textContent = `The viewer cannot read the document in this page: ${why}.`;
  }
}
