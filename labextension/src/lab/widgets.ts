/**
 * The models and views of `blocknb.widgets` for ipywidgets.
 *
 * A KernelDocumentModel holds the document of one kernel as bytes, and all views of the kernel refer to it. So the document travels once,
 * and the traits of a view are small. Requests and answers are custom messages. A view mounts the same code as a card. It sets the traits
 * when the user selects something, and moves when a trait changes.
 */

import {
  DOMWidgetModel,
  DOMWidgetView,
  type ISerializers,
  unpack_models,
  WidgetModel,
} from '@jupyter-widgets/base';
import type { JSONObject } from '@lumino/coreutils';

import { copyText } from '../core/copy';
import { problemOf, readable } from '../core/documents';
import { VERSION } from '../core/hello';
import type { Host } from '../core/host';
import { Budget, inflateBytes } from '../core/inflate';
import type { MountedView, ViewState } from '../core/mount_view';
import type { Document, Listing } from '../core/schema';
import { loadCore } from './load_core';
import { PendingRequests } from './requests';
import { SHOWN_EVENT, type ShownDetail } from './shown_event';

/** Returns what the notebook of an element offers. Absent outside of a notebook. */
type CellHost = (node: HTMLElement, doc: Document) => Partial<Host>;
let cellHost: CellHost = () => ({});

/** Sets how a view finds the cells of its notebook. */
export function setCellHost(found: CellHost): void {
  cellHost = found;
}

const MODULE = { _model_module: 'blocknb', _model_module_version: VERSION };

/** The document of a kernel, and the connection to the kernel. */
export class KernelDocumentModel extends WidgetModel {
  static serializers: ISerializers = {
    ...WidgetModel.serializers,
    packed: { serialize: (value: unknown) => value }, // bytes: the default would make JSON of them
  };

  private requests!: PendingRequests;
  private loaded: { packed: DataView; document: Promise<Document> } | null = null;
  private whole: Promise<unknown> | null = null;

  defaults(): Record<string, unknown> {
    return { ...super.defaults(), ...MODULE, _model_name: 'KernelDocumentModel', packed: null };
  }

  initialize(attributes: Record<string, unknown>, options: Parameters<WidgetModel['initialize']>[1]): void {
    super.initialize(attributes as Parameters<WidgetModel['initialize']>[0], options);
    this.requests = new PendingRequests((content) => this.send(content, {}));
    this.on('msg:custom', (content: JSONObject, buffers: DataView[]) =>
      this.requests.receive(content, buffers),
    );
    this.on('comm_live_update', () => {
      if (!this.comm_live) {
        this.requests.fail();
      }
    });
  }

  /** Decodes the document. Rejects with a reason that a user can read. */
  document(): Promise<Document> {
    const packed = this.get('packed') as DataView | null;
    if (!packed) {
      return Promise.reject(new Error('The notebook does not contain the document of this widget.'));
    }
    if (this.loaded?.packed !== packed) {
      this.loaded = { packed, document: decode(packed) };
    }
    return this.loaded.document;
  }

  /** Sends a request to the kernel. All views of the kernel share one request for the slow parts of the document. */
  request(
    what: string,
    content: Record<string, unknown>,
    progress?: (content: Record<string, unknown>) => void,
  ): Promise<unknown> {
    const send = async () => (await this.requests.request(what, content as JSONObject, progress)).content;
    if (what !== 'whole') {
      return send();
    }
    this.whole ??= send().finally(() => (this.whole = null));
    return this.whole;
  }

  /** Interrupts the kernel, where the manager of the widgets has one. */
  interrupt(): void {
    const manager = this.widget_manager as unknown as { kernel?: { interrupt(): Promise<void> } };
    void manager.kernel?.interrupt();
  }
}

async function decode(packed: DataView): Promise<Document> {
  const bytes = new Uint8Array(packed.buffer as ArrayBuffer, packed.byteOffset, packed.byteLength);
  const check = (value: unknown): void => {
    if (!readable(value)) {
      throw new Error(`This page cannot show the widget: ${problemOf(value)}.`);
    }
  };
  return (await inflateBytes(bytes, new Budget(), check)) as Document;
}

const STATE: (keyof ViewState)[] = [
  'target',
  'stage',
  'stage_index',
  'compared_with',
  'op',
  'line',
  'program',
  'iteration',
];

/** A view of a kernel. `view` is the key of the view in the core. */
export class KernelViewModel extends DOMWidgetModel {
  static serializers: ISerializers = {
    ...DOMWidgetModel.serializers,
    document: { deserialize: unpack_models },
  };

  defaults(): Record<string, unknown> {
    const state = Object.fromEntries(STATE.map((name) => [name, null]));
    return {
      ...super.defaults(),
      ...MODULE,
      ...state,
      _model_name: 'KernelViewModel',
      _view_name: 'KernelViewWidget',
      _view_module: 'blocknb',
      _view_module_version: VERSION,
      view: 'card',
      document: null,
    };
  }

  /** The traits that say what is shown. */
  get state(): Partial<ViewState> {
    const named = STATE.map((name) => [name, this.get(name)] as const);
    return Object.fromEntries(named.filter(([, value]) => value !== null && value !== undefined));
  }
}

/** Returns the picture, or the label and the value of a widget, as blocknb/widgets/outputs.py writes them. null: it has neither. */
function contentOfModel(model: WidgetModel): { text: string } | { png: string } | null {
  const outputs = (model.get('outputs') ?? []) as { data?: Record<string, unknown> }[];
  const png = outputs.map((output) => output.data?.['image/png']).find((data) => typeof data === 'string');
  if (png) {
    return { png: png as string };
  }
  const value: unknown = model.get('value');
  const label = model.get('description') as string | undefined;
  if (!['string', 'number', 'boolean'].includes(typeof value)) {
    return null;
  }
  return { text: (label ? `${label}: ${String(value)}` : String(value)).slice(0, 200) };
}

/** Shows a KernelViewModel. */
export class KernelViewWidget extends DOMWidgetView {
  private mounted: MountedView | null = null;
  private shownDocument: Document | null = null;
  private source: KernelDocumentModel | null = null;
  private token = 0;
  private wasLive = false;
  /** Whether this view is setting traits itself. */
  private telling = false;
  /** The traits that changed since the last microtask. A link of two traits changes them one by one. */
  private changed: Partial<ViewState> | null = null;

  render(): void {
    this.el.classList.add('bnb-output', 'bnb-widget');
    this.listenTo(this.model, 'change:document', () => this.openDocument());
    this.listenTo(this.model, 'change', () => this.follow());
    this.openDocument();
    void this.displayed.then(() => this.connect()); // the notebook is known only then
  }

  remove(): void {
    this.token += 1;
    this.mounted?.dispose();
    this.mounted = null;
    super.remove();
  }

  private openDocument(): void {
    if (this.source) {
      this.stopListening(this.source);
    }
    this.source = this.model.get('document') as KernelDocumentModel | null;
    if (this.source) {
      this.listenTo(this.source, 'change:packed', () => void this.load());
      this.listenTo(this.source, 'comm_live_update', () => this.connect());
    }
    void this.load();
  }

  private async load(): Promise<void> {
    const token = ++this.token;
    try {
      if (!this.source) {
        throw new Error('This widget shows no kernel yet. Set its trait “kernel” in Python.');
      }
      const [doc, core] = await Promise.all([this.source.document(), loadCore()]);
      if (token === this.token) {
        this.show(doc, core);
      }
    } catch (error) {
      if (token === this.token) {
        this.mounted?.dispose();
        this.mounted = null;
        const message = document.createElement('p');
        message.className = 'bnb-composed-text';
        message.textContent = error instanceof Error ? error.message : String(error);
        this.el.replaceChildren(message);
      }
    }
  }

  private show(doc: Document, core: Awaited<ReturnType<typeof loadCore>>): void {
    const same = JSON.stringify(doc) === JSON.stringify(this.mounted?.document ?? null);
    this.shownDocument = doc;
    if (!this.mounted) {
      const { state } = this.model as KernelViewModel;
      const key = this.model.get('view') as string;
      this.mounted = core.mountView(this.el, key, doc, this.host(), state, (told) => this.tell(told));
    } else if (!same) {
      this.mounted.update(doc);
      this.connect(); // the source of the new document may be in another cell
    }
    this.announce();
  }

  private connect(): void {
    this.mounted?.connect(this.host());
  }

  private host(): Host {
    const { source } = this;
    const live = source?.comm_live ?? false;
    this.wasLive ||= live;
    return {
      state: live ? 'live' : this.wasLive ? 'disconnected' : 'saved',
      ...(this.shownDocument && cellHost(this.el, this.shownDocument)),
      copy: copyText,
      ...(source &&
        live && {
          request: source.request.bind(source),
          cancel: () => source.interrupt(),
          fetchBlob: async (hash: string) =>
            ((await source.request('blob', { hash })) as { listing: unknown }).listing as Listing,
        }),
    };
  }

  /** Sets the traits to what the view shows. */
  private tell(told: Partial<ViewState>): void {
    this.telling = true;
    this.model.set(told);
    this.telling = false;
    this.touch();
    this.announce();
  }

  /** Moves the view after traits changed. */
  private follow(): void {
    const names = STATE.filter((name) => this.model.hasChanged(name));
    if (this.telling || !names.length) {
      return;
    }
    if (!this.changed) {
      queueMicrotask(() => {
        const state = this.changed ?? {};
        this.changed = null;
        this.mounted?.show(state);
        this.announce();
      });
    }
    this.changed = {
      ...this.changed,
      ...Object.fromEntries(names.map((name) => [name, this.model.get(name)])),
    };
  }

  private announce(): void {
    if (this.shownDocument) {
      const { model_id: model, state, widget_manager: manager } = this.model as KernelViewModel;
      const contentOf = async (id: string) => contentOfModel(await manager.get_model(id));
      const detail = { model, state, document: this.shownDocument, contentOf } as ShownDetail;
      this.el.dispatchEvent(new CustomEvent(SHOWN_EVENT, { bubbles: true, detail }));
    }
  }
}
