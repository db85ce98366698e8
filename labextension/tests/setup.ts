/** What jsdom lacks: it lays nothing out, so every rectangle of a text is empty. */

if (typeof Range !== 'undefined') {
  Range.prototype.getClientRects = () => [] as unknown as DOMRectList;
  Range.prototype.getBoundingClientRect = () => new DOMRect();
}
