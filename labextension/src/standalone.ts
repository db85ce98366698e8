/**
 * The viewer of an exported page: mounts every document that the page carries, in the colours that the reader's system asks for. It
 * opens no connection of any kind.
 */

import '../style/index.css';

import { mount } from './core/mount';
import { readable } from './core/schema';

const dark = matchMedia('(prefers-color-scheme: dark)');
const colour = (): void => void document.documentElement.classList.toggle('bnb-dark', dark.matches);
dark.addEventListener('change', colour);
colour();

for (const script of document.querySelectorAll<HTMLScriptElement>(
  'script[type="application/vnd.blocknb.v1+json"]',
)) {
  const doc: unknown = JSON.parse(script.textContent ?? 'null');
  const place = document.createElement('div');
  script.after(place);
  if (readable(doc)) {
    mount(place, doc, {
      state: 'saved',
      copy: (text) => void navigator.clipboard?.writeText(text),
    });
  } else {
    place.textContent = 'This page carries a document that its viewer cannot read.';
  }
}
