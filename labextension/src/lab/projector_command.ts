/** The command that shows a card in projector mode: that of the active cell, otherwise the first one in the current notebook. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';

import { toggleProjector } from '../core/projector';

const COMMAND = 'blocknb:projector';

/** Returns the card that the command is for. */
function currentCard(tracker: INotebookTracker): Element | null {
  const notebook = tracker.currentWidget?.content;
  const selector = '.bnb-card:not(.bnb-docked, .bnb-single, .bnb-progress)';
  return notebook?.activeCell?.node.querySelector(selector) ?? notebook?.node.querySelector(selector) ?? null;
}

/** Adds the command to the application and, where there is one, to the command palette. */
export function addProjectorCommand(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  palette: ICommandPalette | null,
): void {
  app.commands.addCommand(COMMAND, {
    label: 'Show the Card in Projector Mode',
    caption: 'Show one view of the card of the active cell over the whole screen',
    isEnabled: () => currentCard(tracker) !== null,
    execute: () => {
      const card = currentCard(tracker);
      if (card) {
        toggleProjector(card);
      }
    },
    describedBy: { args: { type: 'object', properties: {} } },
  });
  palette?.addItem({ command: COMMAND, category: 'blocknb' });
  tracker.activeCellChanged.connect(() => app.commands.notifyCommandChanged(COMMAND));
}
