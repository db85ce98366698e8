/**
 * Views of a card in panels beside the notebook. A panel belongs to a kernel of a cell, not to one output: when the cell runs again, the
 * new card fills the panel, with the choices that the user made in the old one. It closes with the notebook.
 */

import type { ILabShell, JupyterFrontEnd } from '@jupyterlab/application';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { Widget } from '@lumino/widgets';

import type { Card, Docked } from '../core/mount';
import { uniqueId } from '../core/dom';

/** The card that a panel shows: its notebook, the id of its cell, and its kernel. */
export interface Place {
  panel: NotebookPanel;
  cell: string;
  kernel: string;
}

/** A panel with one view of a card. */
class DockedView extends Widget {
  private shown: Docked | null = null;

  constructor(
    readonly place: Place,
    readonly view: string,
    title: string,
  ) {
    super();
    this.id = uniqueId('dock');
    this.addClass('bnb-dock');
    this.title.label = title;
    this.title.caption = `${title}, of a cell of ${place.panel.context.path}`;
    this.title.closable = true;
  }

  /** Shows the view of a card instead of the former one. */
  showCard(card: Card): void {
    const before = this.shown;
    before?.dispose();
    this.node.classList.remove('bnb-dock-waiting');
    this.shown = card.dock(this.view, this.node, before?.view);
  }

  /** Keeps the last content, dimmed, until the cell has a card again. */
  wait(): void {
    this.node.classList.add('bnb-dock-waiting');
  }

  /** Ends the view. JupyterLab only takes a closed widget out of its layout, so `Docks` would know a panel that is nowhere. */
  close(): void {
    this.dispose();
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.shown?.dispose();
      super.dispose();
    }
  }
}

/** All docked views of the application. */
export class Docks {
  private readonly open = new Set<DockedView>();

  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly labShell: ILabShell | null,
  ) {}

  /** Opens a view of a card in a panel, or activates the panel that shows it. */
  add(place: Place, card: Card, view: string, title: string): void {
    const known = this.of(place).find((dock) => dock.view === view);
    const dock = known ?? new DockedView(place, view, title);
    if (!known) {
      this.open.add(dock);
      dock.showCard(card);
      dock.disposed.connect(() => this.open.delete(dock));
      place.panel.disposed.connect(dock.dispose, dock);
      if (this.labShell) {
        this.labShell.add(dock, 'main', { mode: 'split-right', ref: place.panel.id, activate: false });
      } else {
        this.app.shell.add(dock, 'right'); // Notebook has no main area for a second document
      }
    }
    this.app.shell.activateById(dock.id);
  }

  /** Shows a new card of a cell in the panels of its kernel. */
  attach(place: Place, card: Card): void {
    this.of(place).forEach((dock) => dock.showCard(card));
  }

  /** Tells the panels of a card that it has gone. */
  detach(place: Place): void {
    this.of(place).forEach((dock) => dock.wait());
  }

  private of({ panel, cell, kernel }: Place): DockedView[] {
    return [...this.open].filter(
      ({ place }) => place.panel === panel && place.cell === cell && place.kernel === kernel,
    );
  }
}
