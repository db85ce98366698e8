/** What an animation is made of: frames of one size, drawn one after another, and how long each one stands. */

/** An animation. Its frames are drawn on its own canvas, which is in no page. */
export interface Film {
  readonly width: number;
  readonly height: number;
  /** The number of frames. */
  readonly count: number;
  readonly canvas: HTMLCanvasElement;
  /** Draws a frame. Frames in ascending order are the quickest. */
  draw(frame: number): void;
  /** Returns the drawn frame: four bytes per pixel (red, green, blue, alpha). */
  pixels(): Uint8ClampedArray;
}

/** How a film is encoded. `delay` and `hold`: milliseconds of a frame, and of the last one. */
export interface Encoding {
  delay: number;
  hold: number;
  signal: AbortSignal;
  progress(done: number): void;
}

const BUSY_MS = 30;

/** Lets the page react between pieces of long work, and ends the work when the user cancels it. */
export class Breather {
  private last = performance.now();

  constructor(private readonly signal: AbortSignal) {}

  /** Waits if the work has blocked the page for a while. Rejects with an AbortError after a cancellation. */
  async breathe(): Promise<void> {
    if (performance.now() - this.last > BUSY_MS) {
      await new Promise((resolve) => setTimeout(resolve));
      this.last = performance.now();
    }
    this.signal.throwIfAborted();
  }
}
