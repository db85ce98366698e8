/**
 * Keeps CodeMirror from writing its styles again. All editors of a page share one `<style>` element. In the CodeMirror of JupyterLab 4.6,
 * each new editor assigns the whole text, even if it is the same. The browser then computes the styles of all elements of the page again:
 * 40 ms in a notebook of 30 cards, for each of the three editors of a card. Newer versions of style-mod compare the modules first.
 */

/** With this character begin the class names that CodeMirror generates. */
const GENERATED = '.\u037c';

const text = Object.getOwnPropertyDescriptor(Node.prototype, 'textContent')!;
let kept: Element | null = null;

/** Makes the element with CodeMirror's styles ignore an assignment of the text that it has. Call it before an editor is created. */
export function keepStyles(): void {
  if (kept?.isConnected) {
    return;
  }
  kept =
    [...document.head.querySelectorAll('style')].find((one) => one.textContent.includes(GENERATED)) ?? null;
  if (kept) {
    Object.defineProperty(kept, 'textContent', {
      configurable: true,
      get: text.get,
      set(this: Element, value: string) {
        if (value !== this.textContent) {
          text.set!.call(this, value);
        }
      },
    });
  }
}
