/**
 * The MIME renderer of cards. It mounts the core from the document alone and links the input cell if the card is in a notebook. It
 * connects the card to the kernel if the notebook is trusted and the kernel knows the card. If this version cannot read the document,
 * the renderer shows the static HTML.
 */

import { type INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { JSONObject } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';

import { copyText } from '../core/copy';
import type { CellState, Host, RunCell } from '../core/host';
import { type Card, mount } from '../core/mount';
import type { LinkTarget } from '../core/link_target';
import { readable } from '../core/documents';
import { type Document, type Listing, MIME } from '../core/schema';
import { cardAddress, requestedTarget } from './address';
import { cellHost } from './cell_host';
import type { Docks, Place } from './dock';
import { cellOf } from './link';
import { CardConnection } from './live';
import type { WidgetOutput } from './widget_output';

/** JupyterLab's commands for the keys that run a cell. */
const RUN: Record<RunCell, string> = {
  next: 'notebook:run-cell-and-select-next',
  stay: 'notebook:run-cell',
  insert: 'notebook:run-cell-and-insert-below',
};

/** What a card needs from the application. `execute` runs a command. */
export interface Application {
  tracker: INotebookTracker;
  rendermime: IRenderMimeRegistry;
  docks: Docks;
  execute(command: string): void;
  /** Makes a document the current one. */
  activate(id: string): void;
}

/** Renders one card output. */
export class CardRenderer extends Widget implements IRenderMime.IRenderer {
  private card: Card | null = null;
  /** Renders the output instead of a card if it is a widget. */
  private widget: WidgetOutput | null = null;
  private connection: CardConnection | null = null;
  private model: IRenderMime.IMimeModel | null = null;
  /** The document of the card. */
  private shown: Document | null = null;
  /** The rendered document as JSON. */
  private rendered = '';
  /** The number of calls of `renderModel`. A call that waited shows nothing if another one came meanwhile. */
  private renderings = 0;
  /** Whether the card lost its kernel. */
  private disconnected = false;
  private cell: CellState | null = null;
  private contentChanged: NonNullable<NotebookPanel['content']['model']>['contentChanged'] | null = null;
  private session: NotebookPanel['sessionContext'] | null = null;
  /** Whether an attempt to connect is in progress. */
  private connecting = false;
  private timer = 0;
  /** The cell of the card, once the card is in a notebook. */
  private place: Place | null = null;
  /** Whether the card was opened at the place that the address names. */
  private requested = false;

  constructor(private readonly app: Application) {
    super();
    this.addClass('bnb-output');
    this.node.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && !event.defaultPrevented) {
        this.focusCell();
      }
    });
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.model = model;
    const rendering = ++this.renderings;
    const doc = model.data[MIME] as unknown;
    if (!readable(doc)) {
      this.removeCard();
      this.removeWidget();
      this.rendered = '';
      await this.renderStatic(model);
      return;
    }
    if (doc.widget) {
      this.removeCard();
      this.rendered = '';
      const { WidgetOutput } = await import('./widget_output'); // most notebooks have no widgets
      if (!this.isDisposed && rendering === this.renderings) {
        this.widget ??= new WidgetOutput(this, () => this.panel);
        this.widget.render(doc, model);
      }
      return;
    }
    const content = JSON.stringify(doc);
    if (content === this.rendered) {
      this.reconnect(); // this renderer saved the document, or the notebook became trusted
      return;
    }
    this.rendered = content;
    try {
      this.showCard(doc);
    } catch (error) {
      console.warn('blocknb shows the static card:', error);
      this.removeCard();
      await this.renderStatic(model);
    }
  }

  /** Shows a document of a card. The card stays if it is one of the same kernel; its host is always that of the new document. */
  private showCard(doc: Document): void {
    const before = this.shown;
    if (before && before.model !== doc.model) {
      this.disconnect();
    }
    if (this.card && before?.kind === doc.kind && before.kernel === doc.kernel) {
      this.card.update(doc);
    } else {
      this.removeCard();
      this.removeWidget();
      this.card = mount(this.node, doc, this.host(doc));
      if (this.isAttached) {
        this.settle(doc);
      }
    }
    this.shown = doc;
    if (before) {
      this.updateHost(doc); // the cell and the kernel's card may be others
    }
    this.reconnect();
  }

  /** Removes the card and its connection, before this renderer shows something else. */
  private removeCard(): void {
    if (this.place) {
      this.app.docks.detach(this.place);
    }
    this.place = null;
    this.disconnect();
    this.card?.dispose();
    this.card = this.shown = null;
  }

  private removeWidget(): void {
    this.widget?.dispose();
    this.widget = null;
  }

  /** Closes the connection to the kernel's card. The next document is not one that lost its kernel. */
  private disconnect(): void {
    this.connection?.dispose();
    this.connection = null;
    this.disconnected = false;
  }

  protected onAfterAttach(): void {
    const doc = this.model?.data[MIME] as unknown;
    if (readable(doc) && doc.widget) {
      this.session ??= this.panel?.sessionContext ?? null;
      this.session?.kernelChanged.connect(this.reconnect, this);
      this.widget?.connect();
    } else if (this.card && readable(doc)) {
      this.settle(doc);
      this.openRequested();
      this.updateHost(doc); // the notebook of the card is known only after attachment
      this.contentChanged ??= this.panel?.content.model?.contentChanged ?? null;
      this.contentChanged?.connect(this.onContentChanged, this);
      this.session ??= this.panel?.sessionContext ?? null;
      this.session?.kernelChanged.connect(this.reconnect, this);
      this.reconnect();
    }
  }

  /** Notes the cell of the card, and shows the card in the docked views of that cell. */
  private settle(doc: Document): void {
    const { panel } = this;
    const cell = panel?.content.widgets.find((one) => one.node.contains(this.node));
    if (panel && cell && this.card && !this.place) {
      this.place = { panel, cell: cell.model.id, kernel: doc.kernel };
      this.app.docks.attach(this.place, this.card);
    }
  }

  dispose(): void {
    this.contentChanged?.disconnect(this.onContentChanged, this);
    this.session?.kernelChanged.disconnect(this.reconnect, this);
    window.clearTimeout(this.timer);
    this.removeCard();
    this.removeWidget();
    super.dispose();
  }

  private updateHost(doc: Document): void {
    const host = this.host(doc, this.disconnected);
    this.cell = host.cell ?? null;
    this.card?.connect(host);
  }

  /** Tries to connect after a kernel started or the notebook became trusted. A reloaded page renders before it has a kernel. */
  private reconnect(): void {
    const doc = this.model?.data[MIME] as unknown;
    this.widget?.connect();
    if (this.card && !this.connection && readable(doc)) {
      void this.openConnection(doc, this.model?.trusted ?? false);
    }
  }

  /** Checks after an edit whether a cell still contains the kernel's source. */
  private onContentChanged(): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      const doc = this.model?.data[MIME] as unknown;
      const panel = this.panel;
      if (this.card && panel && !panel.isDisposed && readable(doc) && doc.source.text) {
        const cell = cellOf(panel, doc.source, this.node) ? 'found' : 'changed';
        if (cell !== this.cell) {
          this.updateHost(doc);
        }
      }
    }, 300);
  }

  /** Moves the focus from the card to its cell, in command mode. */
  private focusCell(): void {
    const notebook = this.panel?.content;
    const at = notebook?.widgets.findIndex((cell) => cell.node.contains(this.node)) ?? -1;
    if (notebook && at >= 0) {
      notebook.activeCellIndex = at;
      notebook.mode = 'command';
      notebook.activeCell?.node.focus();
    }
  }

  /** Runs the cell of the card. A docked view runs it, too, and its notebook becomes the current document. */
  private runCell(then: RunCell): void {
    const { panel } = this;
    if (panel) {
      this.app.activate(panel.id);
      this.focusCell();
      panel.content.deselectAll();
      this.app.execute(RUN[then]);
    }
  }

  /** Shows the state that the address of the page names, once. */
  private openRequested(): void {
    const panel = this.panel;
    const target = panel ? requestedTarget(this.cellId(panel)) : undefined;
    if (target !== undefined && !this.requested) {
      this.requested = true;
      this.card?.open(target);
    }
  }

  /** The id of the cell with this output. */
  private cellId(panel: NotebookPanel): string | undefined {
    return panel.content.widgets.find((cell) => cell.node.contains(this.node))?.model.id;
  }

  private get panel(): NotebookPanel | null {
    return this.app.tracker.find((panel) => panel.node.contains(this.node)) ?? null;
  }

  private host(doc: Document, disconnected = false): Host {
    const { connection, panel } = this;
    return {
      state: connection ? 'live' : disconnected ? 'disconnected' : 'saved',
      ...cellHost(panel, doc, this.node),
      ...(panel && {
        runCell: (then: RunCell) => this.runCell(then),
        dock: (view: string, title: string) => {
          this.settle(doc);
          if (this.place && this.card) {
            this.app.docks.add(this.place, this.card, view, title);
          }
        },
      }),
      copy: copyText,
      ...(panel && {
        link: (target: LinkTarget) => cardAddress(panel.context.path, this.cellId(panel) ?? '', target),
      }),
      ...(connection && {
        request: async (
          what: string,
          content: Record<string, unknown>,
          progress?: (content: Record<string, unknown>) => void,
        ) => (await connection.request(what, content as JSONObject, progress)).content,
        cancel: () => connection.cancel(),
        fetchBlob: async (hash: string) =>
          (await connection.request('blob', { hash })).content.listing as unknown as Listing,
        save: (next: Document) => this.save(next),
      }),
    };
  }

  /** Connects the card if the notebook's kernel knows it. */
  private async openConnection(doc: Document, trusted: boolean): Promise<void> {
    const kernel = this.panel?.sessionContext.session?.kernel;
    if (this.connecting || !trusted || !doc.model || !kernel || kernel.isDisposed) {
      return;
    }
    this.connecting = true;
    const connection = await CardConnection.open(kernel, doc.model, () => this.onClosed()).finally(
      () => (this.connecting = false),
    );
    if (this.isDisposed || !this.card) {
      connection?.dispose();
      return;
    }
    if (this.shown?.model !== doc.model) {
      connection?.dispose(); // another document came meanwhile
      this.reconnect();
      return;
    }
    this.connection = connection;
    this.disconnected = connection === null;
    this.updateHost(this.shown);
  }

  private onClosed(): void {
    this.connection = null;
    this.disconnected = true;
    if (!this.isDisposed && this.shown) {
      this.updateHost(this.shown);
    }
  }

  /** Writes the shown document to the output, so that the notebook saves it. */
  private save(doc: Document): void {
    this.rendered = JSON.stringify(doc);
    this.model?.setData({ data: { ...this.model.data, [MIME]: doc as unknown as JSONObject } });
  }

  private async renderStatic(model: IRenderMime.IMimeModel): Promise<void> {
    const mime = model.data['text/html'] ? 'text/html' : 'text/plain';
    const renderer = this.app.rendermime.createRenderer(mime);
    const { renderings } = this;
    await renderer.renderModel(model);
    if (!this.isDisposed && renderings === this.renderings) {
      this.node.replaceChildren(renderer.node);
    }
  }
}
