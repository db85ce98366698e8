/**
 * Loads the views for widgets. JupyterLab and Notebook share CodeMirror with extensions. Voila and other applications have none, so they
 * load the viewer of exported pages, which contains it.
 */

import type * as MountView from '../core/mount_view';

/** The views for widgets. */
export type Core = Pick<typeof MountView, 'mountView'>;

declare global {
  interface Window {
    /** Set by the viewer (standalone.ts). */
    blocknbViewer?: Core;
  }
}

/** The folder of this extension's scripts on the server. The bundler sets it. */
declare const __webpack_public_path__: string;

let core: Promise<Core> | null = null;

/** Loads the views once per page. The next widget tries again if that failed, for example without a connection. */
export function loadCore(): Promise<Core> {
  core ??= import('../core/mount_view').catch(() => loadViewer());
  core.catch(() => (core = null));
  return core;
}

async function loadViewer(): Promise<Core> {
  const folder = `${__webpack_public_path__}../viewer/`;
  const style = document.createElement('link');
  style.rel = 'stylesheet';
  style.href = `${folder}blocknb.css`;
  const script = document.createElement('script');
  script.src = `${folder}viewer.js`;
  document.head.append(style, script);
  await new Promise((resolve, reject) => {
    script.onload = resolve;
    script.onerror = () => reject(new Error(`The page cannot load ${script.src}.`));
  });
  if (!window.blocknbViewer) {
    throw new Error(`${script.src} is not the viewer of this version of blocknb.`);
  }
  return window.blocknbViewer;
}
