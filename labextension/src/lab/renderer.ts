/**
 * The renderer of cards in a page. It mounts the core at once, from the document alone; links the input cell when the card stands in
 * a notebook; and, where the notebook is trusted and the kernel still knows the card, makes it live. A document that this version
 * cannot read is shown by its static HTML.
 */

import { type INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { JSONObject } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';

import type { CellState, Host } from '../core/host';
import { type Card, mount } from '../core/mount';
import { type Document, type Listing, MIME, readable } from '../core/schema';
import { cellOf, lightCell, watchCell } from './link';
import { Live } from './live';

export class CardRenderer extends Widget implements IRenderMime.IRenderer {
  private card: Card | null = null;
  private live: Live | null = null;
  private model: IRenderMime.IMimeModel | null = null;
  private drawn = '';
  /** Whether a kernel that knew the card has gone. */
  private gone = false;
  private cell: CellState | null = null;
  private watched: NonNullable<NotebookPanel['content']['model']>['contentChanged'] | null = null;
  private session: NotebookPanel['sessionContext'] | null = null;
  /** A kernel is being asked. */
  private asking = false;
  private timer = 0;

  constructor(
    private readonly tracker: INotebookTracker,
    private readonly rendermime: IRenderMimeRegistry,
  ) {
    super();
    this.addClass('bnb-output');
    this.node.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && !event.defaultPrevented) {
        this.leave();
      }
    });
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.model = model;
    const doc = model.data[MIME] as unknown;
    if (!readable(doc)) {
      await this.renderStatic(model);
      return;
    }
    const content = JSON.stringify(doc);
    if (content === this.drawn) {
      this.again(); // our own save, or the notebook is trusted by now
      return;
    }
    this.drawn = content;
    if (this.card) {
      this.card.update(doc);
    } else {
      this.card = mount(this.node, doc, this.host(doc));
      void this.revive(doc, model.trusted);
    }
  }

  protected onAfterAttach(): void {
    const doc = this.model?.data[MIME] as unknown;
    if (this.card && readable(doc)) {
      this.connect(doc); // only now is it known where the card stands
      this.watched ??= this.panel?.content.model?.contentChanged ?? null;
      this.watched?.connect(this.edited, this);
      this.session ??= this.panel?.sessionContext ?? null;
      this.session?.kernelChanged.connect(this.again, this);
      this.again();
    }
  }

  dispose(): void {
    this.watched?.disconnect(this.edited, this);
    this.session?.kernelChanged.disconnect(this.again, this);
    window.clearTimeout(this.timer);
    this.live?.dispose();
    this.card?.dispose();
    super.dispose();
  }

  private connect(doc: Document): void {
    const host = this.host(doc, this.gone);
    this.cell = host.cell ?? null;
    this.card?.connect(host);
  }

  /** A kernel has come (a reloaded page is painted before it is connected again), or the notebook was trusted. */
  private again(): void {
    const doc = this.model?.data[MIME] as unknown;
    if (this.card && !this.live && readable(doc)) {
      void this.revive(doc, this.model?.trusted ?? false);
    }
  }

  /** A cell was edited: the lines of the card may belong to no cell any more, or to one again. */
  private edited(): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      const doc = this.model?.data[MIME] as unknown;
      const panel = this.panel;
      if (this.card && panel && !panel.isDisposed && readable(doc) && doc.source.text) {
        const cell = cellOf(panel, doc.source, this.node) ? 'found' : 'changed';
        if (cell !== this.cell) {
          this.connect(doc);
        }
      }
    }, 300);
  }

  /** Back from the card to its cell, in command mode. */
  private leave(): void {
    const notebook = this.panel?.content;
    const at = notebook?.widgets.findIndex((cell) => cell.node.contains(this.node)) ?? -1;
    if (notebook && at >= 0) {
      notebook.activeCellIndex = at;
      notebook.mode = 'command';
      notebook.activeCell?.node.focus();
    }
  }

  private get panel(): NotebookPanel | null {
    return this.tracker.find((panel) => panel.node.contains(this.node)) ?? null;
  }

  private host(doc: Document, gone = false): Host {
    const panel = this.panel;
    const live = this.live;
    const cell = () => (panel && !panel.isDisposed ? cellOf(panel, doc.source, this.node) : null);
    let lit: ReturnType<typeof cell> = null;
    return {
      state: live ? 'live' : gone ? 'disconnected' : 'saved',
      cell: panel && doc.source.text ? (cell() ? 'found' : 'changed') : null,
      linkSource: (lines) => {
        if (lit) {
          lightCell(lit, []);
        }
        lit = lines ? cell() : null;
        if (lit && lines) {
          lightCell(lit, lines);
        }
      },
      onSourceLine: (callback) => {
        const found = cell();
        return found ? watchCell(found, callback) : () => {};
      },
      copy: (text) => void navigator.clipboard?.writeText(text),
      ...(live && {
        request: async (what: string, content: Record<string, unknown>) =>
          (await live.request(what, content as JSONObject)).content,
        cancel: () => live.cancel(),
        fetchBlob: async (hash: string) =>
          (await live.request('blob', { hash })).content.listing as unknown as Listing,
        save: (next: Document) => this.save(next),
      }),
    };
  }

  /** Makes the card live if the notebook's kernel knows it. */
  private async revive(doc: Document, trusted: boolean): Promise<void> {
    const kernel = this.panel?.sessionContext.session?.kernel;
    if (this.asking || !trusted || !doc.model || !kernel || kernel.isDisposed) {
      return;
    }
    this.asking = true;
    const live = await Live.open(kernel, doc.model, () => this.lost(doc)).finally(
      () => (this.asking = false),
    );
    if (this.isDisposed || !this.card) {
      live?.dispose();
      return;
    }
    this.live = live;
    this.gone = live === null;
    this.connect(doc);
  }

  private lost(doc: Document): void {
    this.live = null;
    this.gone = true;
    if (!this.isDisposed) {
      this.connect(doc);
    }
  }

  /** Writes what is on the screen back to the output, so that the notebook saves it. */
  private save(doc: Document): void {
    this.drawn = JSON.stringify(doc);
    this.model?.setData({ data: { ...this.model.data, [MIME]: doc as unknown as JSONObject } });
  }

  private async renderStatic(model: IRenderMime.IMimeModel): Promise<void> {
    const mime = model.data['text/html'] ? 'text/html' : 'text/plain';
    const renderer = this.rendermime.createRenderer(mime);
    await renderer.renderModel(model);
    this.node.replaceChildren(renderer.node);
  }
}
