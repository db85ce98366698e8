/** Requests to the kernel that wait for their answers. Each has a number, and its answer and progress reports carry the same number. */

import type { JSONObject } from '@lumino/coreutils';

/** The kernel's answer to a request. */
export interface Answer {
  content: JSONObject;
  buffers: DataView[];
}

interface PendingRequest {
  resolve(answer: Answer): void;
  reject(error: Error): void;
  progress?(content: JSONObject): void;
}

/** The requests of one connection. `send` sends a message to the kernel. */
export class PendingRequests {
  private readonly pending = new Map<number, PendingRequest>();
  private next = 1;

  constructor(private readonly send: (content: JSONObject) => void) {}

  /** Sends a request. `progress` receives the kernel's reports before its answer. */
  request(what: string, content: JSONObject, progress?: (content: JSONObject) => void): Promise<Answer> {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject, progress });
      this.send({ id, what, ...content });
    });
  }

  /** Handles a message of the kernel. */
  receive(content: JSONObject, buffers: DataView[]): void {
    const request = this.pending.get(Number(content.id));
    if (!request) {
      return;
    }
    if (content.progress) {
      request.progress?.(content);
      return;
    }
    this.pending.delete(Number(content.id));
    if (typeof content.error === 'string') {
      request.reject(new Error(content.error));
    } else {
      request.resolve({ content, buffers });
    }
  }

  /** Rejects all requests after the kernel has stopped. */
  fail(): void {
    this.pending.forEach((request) => request.reject(new Error('The kernel has stopped.')));
    this.pending.clear();
  }
}
