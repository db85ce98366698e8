/**
 * An output that holds a widget of `blocknb.widgets`, or a box of ipywidgets with some of them.
 *
 * The output is a document, not a reference to a model that only a kernel has. It shows the views of the document first. In a trusted
 * notebook with a kernel, the renderer of ipywidgets creates the live widget out of sight, and replaces them when it succeeds. What the
 * live views show is written back to the document, so that the notebook saves it.
 */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { MimeModel } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { JSONObject } from '@lumino/coreutils';
import { type Panel, PanelLayout, type Widget } from '@lumino/widgets';

import { copyText } from '../core/copy';
import { mountComposed } from '../core/mount_composed';
import { type Composed, type Document, MIME } from '../core/schema';
import { SHOWN_EVENT, type ShownDetail } from './shown_event';

/** The MIME type of ipywidgets for a reference to a live model. */
const WIDGET_MIME = 'application/vnd.jupyter.widget-view+json';
/** Milliseconds between two looks at the renderer of ipywidgets, and how often to look after a kernel came. */
const POLL_MS = 100;
const POLLS = 150;
/** Milliseconds that a live widget may take before the document is shown. */
const PATIENCE_MS = 400;
/** Milliseconds without a change before the notebook gets the new state. */
const SAVE_MS = 400;

/** Renders one output in an element. */
export class WidgetOutput {
  private readonly saved = document.createElement('div');
  private unmount: (() => void) | null = null;
  private live: Widget | null = null;
  private doc: Document | null = null;
  private model: IRenderMime.IMimeModel | null = null;
  /** The document as JSON that is shown or was saved. */
  private rendered = '';
  private attempt = 0;
  private saveTimer = 0;

  private readonly layout: PanelLayout;

  /** `owner` gets the live widget as its child. `panel` returns the notebook of the owner, once the owner is attached. */
  constructor(
    owner: Widget,
    private readonly panel: () => NotebookPanel | null,
  ) {
    owner.node.replaceChildren(this.saved);
    this.layout = (owner.layout as PanelLayout | null) ?? new PanelLayout();
    owner.layout ??= this.layout;
    document.addEventListener(SHOWN_EVENT, this.onShown);
  }

  /** Shows a document. A live widget stays if the document is the one that it saved. */
  render(doc: Document, model: IRenderMime.IMimeModel): void {
    this.model = model;
    const content = JSON.stringify(doc);
    if (content !== this.rendered) {
      this.rendered = content;
      this.doc = JSON.parse(content) as Document;
      this.removeLive();
      this.unmount?.();
      this.unmount = null;
    }
    this.connect();
  }

  /** Tries to show the live widget. Call it when the notebook has got a kernel or the user's trust. */
  connect(): void {
    if (!this.doc || this.live) {
      return;
    }
    const attempt = ++this.attempt;
    const timer = setTimeout(() => this.showSaved(), this.canConnect() ? PATIENCE_MS : 0);
    void this.findLive(attempt).then((live) => {
      if (live && attempt === this.attempt) {
        clearTimeout(timer);
        this.live = live;
        live.show();
        this.unmount?.();
        this.unmount = null;
      } else {
        live?.dispose();
      }
    });
  }

  dispose(): void {
    this.attempt += 1;
    window.clearTimeout(this.saveTimer);
    document.removeEventListener(SHOWN_EVENT, this.onShown);
    this.removeLive();
    this.unmount?.();
  }

  private canConnect(): boolean {
    return Boolean(this.model?.trusted && this.panel()?.sessionContext.session?.kernel);
  }

  private removeLive(): void {
    this.attempt += 1;
    this.live?.dispose();
    this.live = null;
  }

  private showSaved(): void {
    if (!this.live && !this.unmount && this.doc?.widget) {
      this.unmount = mountComposed(this.saved, this.doc.widget, { state: 'saved', copy: copyText });
    }
  }

  /** Returns the attached live widget, or null if the kernel does not have it. */
  private async findLive(attempt: number): Promise<Widget | null> {
    let factory: IRenderMime.IRendererFactory | undefined;
    let renderer: IRenderMime.IRenderer | null = null;
    for (let i = 0; i < POLLS && attempt === this.attempt && this.canConnect(); i++) {
      const registry = this.panel()!.content.rendermime;
      // ipywidgets replaces its factory by one with a manager when the kernel is known.
      const current = registry.getFactory(WIDGET_MIME);
      if (current && current !== factory) {
        factory = current;
        renderer?.dispose();
        renderer = registry.createRenderer(WIDGET_MIME);
        renderer.hide();
        this.layout.addWidget(renderer);
        const data = { [WIDGET_MIME]: { version_major: 2, version_minor: 0, model_id: this.id } };
        void renderer.renderModel(new MimeModel({ data, trusted: true }));
      }
      if ((renderer as Panel | null)?.widgets.length) {
        return renderer;
      }
      if (renderer?.hasClass('jupyter-widgets')) {
        break; // ipywidgets shows an error: the kernel does not have the model
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    renderer?.dispose();
    return null;
  }

  private get id(): string {
    return this.doc?.widget?.model ?? '';
  }

  /** Writes what a live view shows to the document. The view may be in another output, whose slider is in this one. */
  private readonly onShown = (event: Event): void => {
    const { model, state, document, contentOf } = (event as CustomEvent<ShownDetail>).detail;
    const { widget } = this.doc ?? {};
    if (!widget || !this.live || !this.panel()?.node.contains(event.target as Node)) {
      return;
    }
    const parts = leaves(widget.root);
    for (const part of parts) {
      if ('view' in part && part.model === model) {
        part.state = state;
        widget.documents[part.document] = sameParts(document, widget.documents[part.document]);
      }
    }
    window.clearTimeout(this.saveTimer);
    this.saveTimer = window.setTimeout(() => {
      const others = parts.map(async (part) => {
        if (!('view' in part) && part.model) {
          Object.assign(part, await contentOf(part.model));
        }
      });
      void Promise.allSettled(others).then(() => this.save());
    }, SAVE_MS);
  };

  private save(): void {
    const content = JSON.stringify(this.doc);
    if (this.model && content !== this.rendered) {
      this.rendered = content;
      this.model.setData({ data: { ...this.model.data, [MIME]: JSON.parse(content) as JSONObject } });
    }
  }
}

/** Returns a document with the parts of another one only: a view does not need all parts. */
function sameParts(document: Document, other: Document): Document {
  const parts = Object.entries(document).filter(([name]) => name in other);
  const blobs = Object.keys(other.blobs).length ? document.blobs : {};
  return { ...(Object.fromEntries(parts) as unknown as Document), blobs, model: null };
}

type Leaf = Exclude<Composed, { box: string }>;

function leaves(part: Composed): Leaf[] {
  return 'box' in part ? part.children.flatMap(leaves) : [part];
}
