/**
 * The line between a card and the kernel that made it: one comm a card, opened by the page under the id the document carries.
 *
 * Because the page opens it, the same few lines serve a fresh output, a reloaded page and a reopened notebook: a kernel that still
 * knows the card answers, and any other closes the comm. Requests and answers carry a number; listings come as binary buffers.
 */

import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';

export const CARD_TARGET = 'blocknb.card';

/** Half seconds for which an idle kernel may be silent; one without blocknb closes the comm at once. */
const SILENCE = 20;

export interface Answer {
  content: JSONObject;
  buffers: DataView[];
}

interface Waiting {
  resolve(answer: Answer): void;
  reject(error: Error): void;
  progress?(content: JSONObject): void;
}

export class Live {
  private readonly waiting = new Map<number, Waiting>();
  private next = 1;

  private constructor(
    private readonly comm: Kernel.IComm,
    private readonly kernel: Kernel.IKernelConnection,
    private readonly onClose: () => void,
  ) {
    comm.onMsg = (message) => this.receive(message);
    comm.onClose = () => this.closed();
    kernel.statusChanged.connect(this.status, this);
    kernel.disposed.connect(this.closed, this);
  }

  /** Asks the kernel for a card; null when it does not know it (another kernel, or restarted). */
  static async open(
    kernel: Kernel.IKernelConnection,
    card: string,
    onClose: () => void,
  ): Promise<Live | null> {
    if (!kernel.handleComms) {
      return null; // another notebook of this page is connected to the same kernel
    }
    const comm = kernel.createComm(CARD_TARGET);
    const opened = new Promise<boolean>((resolve) => {
      comm.onMsg = () => resolve(true);
      comm.onClose = () => resolve(false);
    });
    await comm.open({ card }).done.catch(() => null);
    if (!(await answer(opened, kernel))) {
      comm.dispose();
      return null;
    }
    return new Live(comm, kernel, onClose);
  }

  /** Sends a request; `progress` gets what the kernel reports before its answer. */
  request(what: string, content: JSONObject, progress?: (content: JSONObject) => void): Promise<Answer> {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, progress });
      this.comm.send({ id, what, ...content });
    });
  }

  /** Stops what the kernel is doing: messages would wait behind it. */
  cancel(): void {
    void this.kernel.interrupt();
  }

  dispose(): void {
    this.kernel.statusChanged.disconnect(this.status, this);
    this.kernel.disposed.disconnect(this.closed, this);
    if (!this.comm.isDisposed) {
      this.comm.close();
    }
    this.fail();
  }

  private receive(message: KernelMessage.ICommMsgMsg): void {
    const data = message.content.data as JSONObject;
    const waiting = this.waiting.get(Number(data.id));
    if (!waiting) {
      return;
    }
    if (data.progress) {
      waiting.progress?.(data);
      return;
    }
    this.waiting.delete(Number(data.id));
    if (typeof data.error === 'string') {
      waiting.reject(new Error(data.error));
    } else {
      const buffers = (message.buffers ?? []).map((b) =>
        b instanceof ArrayBuffer ? new DataView(b) : new DataView(b.buffer, b.byteOffset, b.byteLength),
      );
      waiting.resolve({ content: data, buffers });
    }
  }

  private status(_: unknown, status: KernelMessage.Status): void {
    if (
      status === 'restarting' ||
      status === 'autorestarting' ||
      status === 'dead' ||
      status === 'terminating'
    ) {
      this.closed();
    }
  }

  private closed(): void {
    this.kernel.statusChanged.disconnect(this.status, this);
    this.kernel.disposed.disconnect(this.closed, this);
    this.fail();
    this.onClose();
  }

  private fail(): void {
    this.waiting.forEach((w) => w.reject(new Error('the kernel is gone')));
    this.waiting.clear();
  }
}

/** The first word of the kernel: whether it knows the card. A kernel at work is waited for, an idle one that is silent is not. */
async function answer(opened: Promise<boolean>, kernel: Kernel.IKernelConnection): Promise<boolean> {
  for (let idle = 0; idle < SILENCE && !kernel.isDisposed;) {
    const word = await Promise.race([opened, delay(500)]);
    if (word !== null) {
      return word;
    }
    idle += kernel.status === 'busy' || kernel.status === 'starting' ? 0 : 1;
  }
  return false;
}

function delay(milliseconds: number): Promise<null> {
  return new Promise((resolve) => setTimeout(() => resolve(null), milliseconds));
}
