/** What a notebook offers to the cards and widgets in it: the cells with the source of the kernel and of its helpers, and their lines. */

import type { NotebookPanel } from '@jupyterlab/notebook';

import type { Cell } from '@jupyterlab/cells';

import { helperLine, innerOf } from '../core/helpers';
import type { Host } from '../core/host';
import type { Document, HelperSource } from '../core/schema';
import { cellOf, highlightCell, watchCell } from './link';

function contains(helper: HelperSource, line: number): boolean {
  const last = helper.first_line + helper.text.trimEnd().split('\n').length - 1;
  return line >= helper.first_line && line <= last;
}

/** The part of a Host that concerns the input cells. `node` is the element of the card; its own cell is preferred. */
export function cellHost(
  panel: NotebookPanel | null,
  doc: Pick<Document, 'source' | 'helpers'>,
  node: HTMLElement,
): Pick<Host, 'cell' | 'highlightSource' | 'onSourceLine' | 'onHelperLine'> {
  const { source, helpers = {} } = doc;
  const find = (one: { first_line: number; text: string }) =>
    panel && !panel.isDisposed ? cellOf(panel, one, node) : null;
  const cell = () => find(source);
  const highlighted = new Set<Cell>();
  return {
    cell: panel && source.text ? (cell() ? 'found' : 'changed') : null,
    highlightSource: (lines, inner) => {
      const wanted = new Map<Cell, number[]>();
      const add = (found: Cell | null, line: number): void => {
        if (found) {
          wanted.set(found, [...(wanted.get(found) ?? []), line]);
        }
      };
      if (lines) {
        const own = cell();
        lines.forEach((line) => add(own, line));
      }
      for (const number of inner) {
        const found = helperLine(doc, number);
        if (found) {
          add(find(found.helper), found.line);
        }
      }
      highlighted.forEach((one) => wanted.has(one) || highlightCell(one, []));
      highlighted.clear();
      wanted.forEach((some, one) => {
        highlightCell(one, some);
        highlighted.add(one);
      });
    },
    onSourceLine: (callback) => {
      const found = cell();
      return found ? watchCell(found, callback) : () => {};
    },
    onHelperLine: (callback) => {
      const byCell = new Map<Cell, [string, HelperSource][]>();
      for (const entry of Object.entries(helpers)) {
        const found = find(entry[1]);
        if (found) {
          byCell.set(found, [...(byCell.get(found) ?? []), entry]);
        }
      }
      const stops = [...byCell].map(([found, entries]) =>
        watchCell(found, (line) => {
          const at = line === null ? [] : entries.filter(([, helper]) => contains(helper, line));
          callback(at.length ? innerOf(at[at.length - 1][0], line!) : null);
        }),
      );
      return () => stops.forEach((stop) => stop());
    },
  };
}
