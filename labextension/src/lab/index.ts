/**
 * The plugins for JupyterLab and Notebook. They only connect `core/` to the application. Code that needs no Jupyter is in `core/`,
 * where tests can run it.
 */

import { ILabShell, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { EditorExtensionRegistry, IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import { VERSION } from '../core/hello';
import { MIME } from '../core/schema';
import { Docks } from './dock';
import { answerHello } from './hello';
import { linkExtension } from './link';
import { CardRenderer } from './renderer';

const hello: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:hello',
  description: `Announces blocknb ${VERSION} to each kernel`,
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_, tracker: INotebookTracker) => answerHello(tracker),
};

/**
 * Keeps keys without a modifier in the focused card. In JupyterLab the card stops them before the application's shortcuts run. In
 * Notebook the shortcuts run first, in the capture phase, and skip elements with this attribute.
 */
function keepPlainKeys(event: KeyboardEvent): void {
  const modified = event.ctrlKey || event.metaKey || event.altKey;
  const leavesCard = modified || event.key === 'Escape' || event.key === 'Tab';
  if (event.target instanceof Element && event.target.closest('.bnb-card')) {
    // The card itself runs its cell.
    event.target.toggleAttribute('data-lm-suppress-shortcuts', !leavesCard || event.key === 'Enter');
  }
}

/** The rank is lower than that of all other renderers of the output; text/html has 50. */
const RANK = 20;

const card: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:card',
  description: 'Renders kernel cards',
  autoStart: true,
  requires: [INotebookTracker, IRenderMimeRegistry],
  optional: [ILabShell],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    rendermime: IRenderMimeRegistry,
    labShell: ILabShell | null,
  ) => {
    window.addEventListener('keydown', keepPlainKeys, { capture: true });
    const application = {
      tracker,
      rendermime,
      docks: new Docks(app, labShell),
      execute: (command: string) => void app.commands.execute(command),
      activate: (id: string) => app.shell.activateById(id),
    };
    rendermime.addFactory(
      { safe: true, mimeTypes: [MIME], createRenderer: () => new CardRenderer(application) },
      RANK,
    );
  },
};

const link: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:link',
  description: 'Links the lines of input cells with the generated code',
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
