/**
 * The knobs of a card: the settings that the user asks for, and the request that compiles and runs the kernel with them. The Knobs view
 * and the strip beside the other views share it.
 */

import type { Document, KnobSettings, OptionKnob } from './schema';
import type { Store } from './store';

/** Milliseconds between the last change and the request. */
const DEBOUNCE_MS = 60;

/** The state of the knobs of one card. Listeners hear of every change of the settings and of the status. */
export class KnobSession {
  /** The document of the run cell, with which changes are compared. */
  first: Document;
  settings: KnobSettings;
  /** What happens now, or why a change does not run. */
  status = '';
  private timer = 0;
  /** Whether a request is in progress. There is one request at a time. */
  private busy = false;
  /** Whether a knob changed during the request. The latest settings follow it. */
  private pending = false;
  private readonly listeners = new Set<() => void>();
  private readonly unsubscribe: () => void;
  private disposed = false;

  constructor(private readonly store: Store) {
    this.first = store.doc;
    this.settings = settingsOf(store.doc);
    this.unsubscribe = store.subscribe((change) => {
      if (change === 'document') {
        this.documentChanged();
      } else if (change === 'host') {
        this.status = this.resting;
        this.notify();
      }
    });
    this.status = this.resting;
  }

  /** Whether the kernel works on a change, which `cancel` ends. */
  get running(): boolean {
    return this.busy;
  }

  /** Interrupts the kernel. The page shows the passes that ran. */
  cancel(): void {
    this.pending = false;
    this.store.host.cancel?.();
  }

  get live(): boolean {
    return this.store.host.request !== undefined;
  }

  private get resting(): string {
    return this.live ? (this.store.doc.knobs?.why ?? '') : 'Knobs need a live kernel. Run the cell again.';
  }

  /** Returns a function that stops the calls. */
  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Changes a setting, and requests the result shortly after. */
  change(set: (settings: KnobSettings) => void): void {
    set(this.settings);
    this.notify();
    this.schedule();
  }

  /** Returns to the values of the cell. */
  reset(): void {
    this.settings = settingsOf(this.first);
    this.store.doc.knobs = this.first.knobs;
    this.notify();
    this.schedule();
  }

  /** Drops a change that was not requested yet. The answer to a request in progress is not shown. */
  dispose(): void {
    this.disposed = true;
    this.pending = false;
    window.clearTimeout(this.timer);
    this.unsubscribe();
    this.listeners.clear();
  }

  private documentChanged(): void {
    if (isOfCell(this.store.doc, this.first)) {
      this.first = this.store.doc; // the complete document
    }
    if (!this.timer && !this.busy) {
      this.settings = settingsOf(this.store.doc);
    }
    this.notify();
  }

  private notify(): void {
    [...this.listeners].forEach((listener) => listener());
  }

  private say(status: string): void {
    this.status = status;
    this.notify();
  }

  private schedule(): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      this.store.run(this.apply());
    }, DEBOUNCE_MS);
  }

  /** Shows what the kernel reports before its answer: the pass that runs, then the document with the code and no measurement yet. */
  private reported({ document, status }: { document?: Document; status?: string }): void {
    if (status) {
      this.say(`${status[0].toUpperCase()}${status.slice(1)}`);
    }
    if (document && !this.pending && !this.disposed) {
      this.status = 'Measuring…';
      this.store.update(document);
    }
  }

  private async apply(): Promise<void> {
    if (this.busy) {
      this.pending = true;
      return;
    }
    this.busy = true;
    this.say('Compiling…');
    try {
      const answer = (await this.store.host.request?.('turn', { knobs: { ...this.settings } }, (report) =>
        this.reported(report),
      )) as { document: Document; saved?: Document };
      if (!this.pending && !this.disposed) {
        this.status = answer.document.knobs?.why ?? '';
        this.store.update(answer.document);
        this.store.host.save?.(answer.saved ?? answer.document);
      }
    } catch (error) {
      this.say(String((error as Error).message));
    } finally {
      this.busy = false;
      this.notify();
    }
    if (this.pending) {
      this.pending = false;
      await this.apply();
    }
  }
}

const sessions = new WeakMap<Store, KnobSession>();

/** Returns the knobs of a card. Its document must have knobs. */
export function knobsOf(store: Store): KnobSession {
  const found = sessions.get(store) ?? new KnobSession(store);
  sessions.set(store, found);
  return found;
}

/** Ends the knobs of a card that is disposed, if it has any. */
export function disposeKnobs(store: Store): void {
  sessions.get(store)?.dispose();
  sessions.delete(store);
}

/** Tells whether a document shows the run cell like another one, and not what the user changed afterwards. */
function isOfCell(doc: Document, first: Document): boolean {
  const edited = doc.views.some((view) => view.stages?.some((stage) => stage.edited));
  return !doc.modified && !edited && JSON.stringify(settingsOf(doc)) === JSON.stringify(settingsOf(first));
}

function settingsOf(doc: Document): KnobSettings {
  const found = doc.knobs!;
  return {
    constants: Object.fromEntries(found.constants.map((k) => [k.name, k.value])),
    num_warps: requestedValue(found.num_warps),
    num_stages: requestedValue(found.num_stages),
    without: found.passes.filter((p) => !p.on).map((p) => p.name),
  };
}

/** Returns the value that the user requested for an option. null leaves the choice to the compiler. */
function requestedValue({ named, value }: OptionKnob): number | null {
  return named === false ? null : Number(value);
}
