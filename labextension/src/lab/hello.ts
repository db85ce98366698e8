/**
 * Answers the handshake of `core/hello` for every kernel of a notebook. It registers the comm target on the connection, also when the
 * notebook changes its kernel.
 */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';

import { announce, HELLO_TARGET } from '../core/hello';

function registerTarget(kernel: Kernel.IKernelConnection): void {
  kernel.registerCommTarget(HELLO_TARGET, (comm) => {
    void comm.send({ ...announce() });
  });
}

function watchNotebook(panel: NotebookPanel): void {
  const context = panel.sessionContext;
  context.kernelChanged.connect((_, change) => {
    if (change.newValue) {
      registerTarget(change.newValue);
    }
  });
  const kernel = context.session?.kernel;
  if (kernel) {
    registerTarget(kernel);
  }
}

/** Answers the handshake in all open and future notebooks. */
export function answerHello(tracker: INotebookTracker): void {
  tracker.forEach(watchNotebook);
  tracker.widgetAdded.connect((_, panel) => watchNotebook(panel));
}
