/**
 * The plugins that JupyterLab and Notebook load. They wire, and do nothing else: what can be tested without Jupyter lives in
 * `core/`.
 */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { EditorExtensionRegistry, IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import { VERSION } from '../core/hello';
import { MIME } from '../core/schema';
import { answerHello } from './hello';
import { linkExtension } from './link';
import { CardRenderer } from './renderer';

const hello: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:hello',
  description: `blocknb ${VERSION}: tells each kernel that the extension is loaded`,
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_, tracker: INotebookTracker) => answerHello(tracker),
};

/**
 * Plain keys belong to the card that has the focus. JupyterLab's commands hear of a key after the card, which keeps it; Notebook's hear
 * of it before, on its way down, and leave it alone where this attribute stands.
 */
function keepPlainKeys(event: KeyboardEvent): void {
  const leads =
    event.ctrlKey || event.metaKey || event.altKey || event.key === 'Escape' || event.key === 'Tab';
  if (event.target instanceof Element && event.target.closest('.bnb-card')) {
    event.target.toggleAttribute('data-lm-suppress-shortcuts', !leads);
  }
}

/** Before every other renderer of the bundle; text/html stands at 50. */
const RANK = 20;

const card: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:card',
  description: 'Shows the cards of kernels',
  autoStart: true,
  requires: [INotebookTracker, IRenderMimeRegistry],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker, rendermime: IRenderMimeRegistry) => {
    window.addEventListener('keydown', keepPlainKeys, { capture: true });
    rendermime.addFactory(
      { safe: true, mimeTypes: [MIME], createRenderer: () => new CardRenderer(tracker, rendermime) },
      RANK,
    );
  },
};

const link: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:link',
  description: 'Links the lines of input cells with the code made from them',
  autoStart: true,
  requires: [IEditorExtensionRegistry],
  activate: (_: JupyterFrontEnd, registry: IEditorExtensionRegistry) => {
    registry.addExtension({
      name: 'blocknb:link',
      factory: () => EditorExtensionRegistry.createImmutableExtension(linkExtension),
    });
  },
};

export default [hello, card, link];
