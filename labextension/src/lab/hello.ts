/**
 * Answers `core/hello` on every kernel that a notebook uses: the comm target is registered on the connection, again
 * when the notebook moves to another kernel, and the answer goes out the moment the kernel opens the comm.
 */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';

import { announce, HELLO_TARGET } from '../core/hello';

function answerOn(kernel: Kernel.IKernelConnection): void {
  kernel.registerCommTarget(HELLO_TARGET, (comm) => {
    void comm.send({ ...announce() });
  });
}

function follow(panel: NotebookPanel): void {
  const context = panel.sessionContext;
  context.kernelChanged.connect((_, change) => {
    if (change.newValue) {
      answerOn(change.newValue);
    }
  });
  const kernel = context.session?.kernel;
  if (kernel) {
    answerOn(kernel);
  }
}

/** Answers for the notebooks that are open and for those that come. */
export function answerHello(tracker: INotebookTracker): void {
  tracker.forEach(follow);
  tracker.widgetAdded.connect((_, panel) => follow(panel));
}
