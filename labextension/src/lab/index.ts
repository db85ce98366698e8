/**
 * The plugin that JupyterLab and Notebook load. It wires, and does nothing else: what can be tested without Jupyter
 * lives in `core/`.
 */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';

import { VERSION } from '../core/hello';
import { answerHello } from './hello';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'blocknb:hello',
  description: `blocknb ${VERSION}: tells each kernel that the extension is loaded`,
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_, tracker: INotebookTracker) => answerHello(tracker),
};

export default plugin;
