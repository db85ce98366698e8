/**
 * Runs before each file of tests. All files share one page, because a page of jsdom takes longer than most files; each file begins with
 * its own modules, an empty storage and an empty body. Stubs for jsdom, which has no layout: every rectangle of a text is empty.
 */

import { vi } from 'vitest';

vi.resetModules();
if (typeof Range !== 'undefined') {
  localStorage.clear();
  document.body.replaceChildren();
  Range.prototype.getClientRects = () => [] as unknown as DOMRectList;
  Range.prototype.getBoundingClientRect = () => new DOMRect();
}
