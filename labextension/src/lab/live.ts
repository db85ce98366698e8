/**
 * The connection between a card and its kernel: one comm per card. The page opens it with the id in the document.
 *
 * The same code serves a new output, a reloaded page and a reopened notebook, because the page opens the comm. A kernel that knows the
 * card answers; any other kernel closes the comm. Requests and answers carry a number. Listings are binary buffers.
 */

import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';

import { type Answer, PendingRequests } from './requests';

/** The comm target of cards. */
export const CARD_TARGET = 'blocknb.card';

/** Half-second polls of an idle kernel before the page gives up. A kernel without blocknb closes the comm at once. */
const MAX_IDLE_POLLS = 20;

/** An open connection of a card to its kernel. */
export class CardConnection {
  private readonly requests = new PendingRequests((content) => void this.comm.send(content));

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

  /** Opens the connection. Resolves with null if the kernel does not know the card. */
  static async open(
    kernel: Kernel.IKernelConnection,
    card: string,
    onClose: () => void,
  ): Promise<CardConnection | null> {
    if (!kernel.handleComms) {
      return null; // another notebook in this page handles the comms of this kernel
    }
    const comm = kernel.createComm(CARD_TARGET);
    const opened = new Promise<boolean>((resolve) => {
      comm.onMsg = () => resolve(true);
      comm.onClose = () => resolve(false);
    });
    await comm.open({ card }).done.catch(() => null);
    if (!(await isAccepted(opened, kernel))) {
      comm.dispose();
      return null;
    }
    return new CardConnection(comm, kernel, onClose);
  }

  /** Sends a request. `progress` receives the kernel's reports before its answer. */
  request(what: string, content: JSONObject, progress?: (content: JSONObject) => void): Promise<Answer> {
    return this.requests.request(what, content, progress);
  }

  /** Interrupts the kernel. A message would wait until the kernel is idle. */
  cancel(): void {
    void this.kernel.interrupt();
  }

  /** Closes the connection. `onClose` is not called, because the page closes it itself. */
  dispose(): void {
    this.comm.onClose = () => {};
    this.kernel.statusChanged.disconnect(this.status, this);
    this.kernel.disposed.disconnect(this.closed, this);
    if (!this.comm.isDisposed) {
      this.comm.close();
    }
    this.requests.fail();
  }

  private receive(message: KernelMessage.ICommMsgMsg): void {
    const buffers = (message.buffers ?? []).map((b) =>
      b instanceof ArrayBuffer ? new DataView(b) : new DataView(b.buffer, b.byteOffset, b.byteLength),
    );
    this.requests.receive(message.content.data as JSONObject, buffers);
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
    this.requests.fail();
    this.onClose();
  }
}

/** Tells whether the kernel knows the card. Waits for a busy kernel; gives up on an idle kernel that does not answer. */
async function isAccepted(opened: Promise<boolean>, kernel: Kernel.IKernelConnection): Promise<boolean> {
  for (let idle = 0; idle < MAX_IDLE_POLLS && !kernel.isDisposed;) {
    const accepted = await Promise.race([opened, delay(500)]);
    if (accepted !== null) {
      return accepted;
    }
    idle += kernel.status === 'busy' || kernel.status === 'starting' ? 0 : 1;
  }
  return false;
}

function delay(milliseconds: number): Promise<null> {
  return new Promise((resolve) => setTimeout(() => resolve(null), milliseconds));
}
