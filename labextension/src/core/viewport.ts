/**
 * Postpones the work of a card until it is near the window. A notebook may have many cards, and their editors take most of the time of
 * opening it and of its memory. While a card is far away, the browser skips its layout (`bnb-far`).
 *
 * The first card of a burst does not wait, because a cell that runs shows one card at a time.
 */

/** Milliseconds in which cards that appear together count as one burst. */
const BURST_MS = 200;

let burstEnds = 0;

/** Calls `action` once, when an element is less than a window’s height away. Returns a function that ends the watch. */
export function whenNear(element: Element, action: () => void): () => void {
  const now = performance.now();
  let waits = now <= burstEnds && typeof IntersectionObserver !== 'undefined';
  burstEnds = now + BURST_MS;
  if (!waits) {
    action();
  }
  if (typeof IntersectionObserver === 'undefined') {
    return () => {};
  }
  const start = (): void => {
    element.classList.remove('bnb-far');
    if (waits) {
      waits = false;
      action();
    }
  };
  // `rootMargin` extends the window; `scrollMargin` does so for the scrolled element of the notebook, where the browser knows it.
  const margins = { rootMargin: '100% 0px', scrollMargin: '100% 0px' };
  const observer = new IntersectionObserver((entries) => {
    if (entries[entries.length - 1].isIntersecting) {
      start();
    } else {
      element.classList.add('bnb-far');
    }
  }, margins);
  element.classList.toggle('bnb-far', waits);
  element.addEventListener('focusin', start);
  window.addEventListener('beforeprint', start);
  observer.observe(element);
  return () => {
    observer.disconnect();
    element.removeEventListener('focusin', start);
    window.removeEventListener('beforeprint', start);
  };
}

/**
 * Fills an element outside of the page. An editor that is created inside of the page lays out the whole page, which takes longer than all
 * else in a notebook of many cards.
 */
export function outsideThePage(element: Element, fill: () => void): void {
  const { parentNode, nextSibling } = element;
  element.remove();
  try {
    fill();
  } finally {
    parentNode?.insertBefore(element, nextSibling);
  }
}
