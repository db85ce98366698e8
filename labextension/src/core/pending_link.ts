/** Follows a link as soon as a view has loaded its content, which takes a while after its tab opens. */

import type { LinkParts, ViewLink } from './link_target';

type Missing = (sentence: string) => void;

/** The link of a view that loads its content. */
export class PendingLink implements ViewLink {
  private wanted: [LinkParts, Missing] | null = null;
  /** What the link has asked the kernel for. */
  private asked = '';

  /** `show` moves the view, and returns whether it had the content for it. If not, the view calls `retry` when it has loaded more. */
  constructor(
    readonly now: () => LinkParts,
    private readonly show: (parts: LinkParts, missing: Missing) => boolean,
  ) {}

  follow(parts: LinkParts, missing: Missing): void {
    this.wanted = [parts, missing];
    this.asked = '';
    this.retry();
  }

  /** Follows the last link if it waits for content. */
  retry(): void {
    const { wanted } = this;
    this.wanted = null;
    if (wanted && !this.show(...wanted)) {
      this.wanted = wanted;
    } else {
      this.asked = '';
    }
  }

  /** Whether to ask the kernel for a content: the link asks for each one once, also if the answer has another. */
  asks(content: string): boolean {
    const first = content !== this.asked;
    this.asked = content;
    return first;
  }

  /** Forgets a link that waits, because its content does not come, or the user has chosen something else. */
  drop(): void {
    this.wanted = null;
    this.asked = '';
  }
}
