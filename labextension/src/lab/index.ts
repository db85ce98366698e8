/**
 * The plugins for JupyterLab, Notebook and Voila. They only connect `core/` to the application. Code that needs no Jupyter is in `core/`,
 * where tests can run it.
 *
 * Voila has neither notebooks nor CodeMirror, so this module imports no code that needs them. It has widgets only.
 */

import { ILabShell, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import { VERSION } from '../core/hello';
import { MIME } from '../core/schema';
import { answerHello } from './hello';

const hello: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:hello',
  description: `Announces blocknb ${VERSION} to each kernel`,
  autoStart: true,
  optional: [INotebookTracker],
  activate: (_, tracker: INotebookTracker | null) => {
    if (tracker) {
      answerHello(tracker);
    }
  },
};

/**
 * Keeps keys without a modifier in the focused card. In JupyterLab the card stops them before the application's shortcuts run. In
 * Notebook the shortcuts run first, in the capture phase, and skip elements with this attribute.
 */
function keepPlainKeys(event: KeyboardEvent): void {
  const modified = event.ctrlKey || event.metaKey || event.altKey;
  const leavesCard = modified || event.key === 'Escape' || event.key === 'Tab';
  if (event.target instanceof Element && event.target.closest('.bnb-card')) {
    // The card itself runs its cell, and a card that covers the window has all keys.
    const own = event.key === 'Enter' || (!modified && event.target.closest('.bnb-projector') !== null);
    event.target.toggleAttribute('data-lm-suppress-shortcuts', !leavesCard || own);
  }
}

/** The rank is lower than that of all other renderers of the output; text/html has 50. */
const RANK = 20;

const card: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:card',
  description: 'Renders kernel cards',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [INotebookTracker, ILabShell, ICommandPalette],
  activate: async (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    tracker: INotebookTracker | null,
    labShell: ILabShell | null,
    palette: ICommandPalette | null,
  ) => {
    if (!tracker) {
      return;
    }
    window.addEventListener('keydown', keepPlainKeys, { capture: true });
    const [{ CardRenderer }, { Docks }, { ProgressRenderer, PROGRESS_MIME }, { addProjectorCommand }] =
      await Promise.all([
        import('./renderer'),
        import('./dock'),
        import('./progress'),
        import('./projector_command'),
      ]);
    addProjectorCommand(app, tracker, palette);
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
    rendermime.addFactory(
      { safe: true, mimeTypes: [PROGRESS_MIME], createRenderer: () => new ProgressRenderer(tracker) },
      RANK,
    );
  },
};

const link: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:link',
  description: 'Links the lines of input cells with the generated code',
  autoStart: true,
  optional: [IEditorExtensionRegistry, INotebookTracker],
  activate: async (
    _: JupyterFrontEnd,
    registry: IEditorExtensionRegistry | null,
    tracker: INotebookTracker | null,
  ) => {
    if (registry && tracker) {
      const { addLink } = await import('./link');
      addLink(registry);
    }
  },
};

const widgets: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:widgets',
  description: 'Provides the widgets of blocknb.widgets',
  autoStart: true,
  optional: [INotebookTracker],
  activate: async (app: JupyterFrontEnd, tracker: INotebookTracker | null) => {
    try {
      const { registerWidgets } = await import('./register_widgets');
      await registerWidgets(app, tracker);
    } catch (error) {
      console.warn('blocknb: this page has no ipywidgets, so blocknb.widgets are not live.', error);
    }
  },
};

export default [hello, card, link, widgets];
