/** What a notebook offers to the cards and widgets in it: the input cell with the kernel's source, and its lines. */

import type { NotebookPanel } from '@jupyterlab/notebook';

import type { Host } from '../core/host';
import type { Source } from '../core/schema';
import { cellOf, highlightCell, watchCell } from './link';

/** The part of a Host that concerns the input cell. `node` is the element of the card; its own cell is preferred. */
export function cellHost(
  panel: NotebookPanel | null,
  source: Source,
  node: HTMLElement,
): Pick<Host, 'cell' | 'highlightSource' | 'onSourceLine'> {
  const cell = () => (panel && !panel.isDisposed ? cellOf(panel, source, node) : null);
  let highlighted: ReturnType<typeof cell> = null;
  return {
    cell: panel && source.text ? (cell() ? 'found' : 'changed') : null,
    highlightSource: (lines) => {
      if (highlighted) {
        highlightCell(highlighted, []);
      }
      highlighted = lines ? cell() : null;
      if (highlighted && lines) {
        highlightCell(highlighted, lines);
      }
    },
    onSourceLine: (callback) => {
      const found = cell();
      return found ? watchCell(found, callback) : () => {};
    },
  };
}
