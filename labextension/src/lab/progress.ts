/**
 * Renders the status of a long compilation in the output of a cell (blocknb/notebook/compile_status.py): the pass that runs, and a button
 * that interrupts the kernel. A message of a widget would wait until the cell has run.
 */

import type { INotebookTracker } from '@jupyterlab/notebook';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { button, h } from '../core/dom';

export const PROGRESS_MIME = 'application/vnd.blocknb.progress.v1+json';

/** Renders one status. */
export class ProgressRenderer extends Widget implements IRenderMime.IRenderer {
  private readonly text = h('span', { role: 'status' });

  constructor(private readonly tracker: INotebookTracker) {
    super();
    const cancel = button('Cancel', () => this.interrupt(), { title: 'Interrupt the compilation' });
    this.node.append(h('div.bnb-card.bnb-progress', {}, this.text, ' ', cancel));
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const data = model.data[PROGRESS_MIME] as { text?: unknown } | null;
    this.text.textContent = String(data?.text ?? '').slice(0, 1000);
    return Promise.resolve();
  }

  private interrupt(): void {
    const panel = this.tracker.find((one) => one.node.contains(this.node));
    const kernel = panel?.sessionContext.session?.kernel;
    if (!kernel) {
      this.text.textContent =
        'No kernel of a notebook is found here. Use “Interrupt Kernel” in the menu Kernel.';
      return;
    }
    kernel.interrupt().catch((error: unknown) => {
      this.text.textContent = `The interrupt failed: ${error instanceof Error ? error.message : String(error)}`;
    });
  }
}
