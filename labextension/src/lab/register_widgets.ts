/** Registers the widgets with ipywidgets. Their code is loaded when a page shows the first one. */

import { type ExportMap, IJupyterWidgetRegistry } from '@jupyter-widgets/base';
import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { INotebookTracker } from '@jupyterlab/notebook';

import { VERSION } from '../core/hello';

/** Registers the module "blocknb". Does nothing if no plugin of the application manages widgets. */
export async function registerWidgets(app: JupyterFrontEnd, tracker: INotebookTracker | null): Promise<void> {
  const registry = await app.resolveOptionalService(IJupyterWidgetRegistry);
  registry?.registerWidget({ name: 'blocknb', version: VERSION, exports: () => load(tracker) });
}

async function load(tracker: INotebookTracker | null): Promise<ExportMap> {
  const { setCellHost, ...classes } = await import('./widgets');
  if (tracker) {
    const { cellHost } = await import('./cell_host');
    setCellHost((node, doc) => {
      const panel = tracker.find((one) => one.node.contains(node)) ?? null;
      return cellHost(panel, doc, node);
    });
  }
  return classes;
}
