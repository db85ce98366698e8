/** Playing of a view that has positions: a button that starts and stops, and the frames in between. */

import { button } from './dom';

/** What is played: the number of positions, the current one, and how to go to another one. */
export interface Played {
  readonly count: number;
  readonly at: number;
  /** Goes to a position. `last`: playing ends there. Returns whether playing must stop at it. */
  go(at: number, last: boolean): boolean | void;
}

const MOVES: Readonly<Record<string, 1 | -1>> = { ArrowRight: 1, ArrowLeft: -1 };

/** A button that plays the positions of a view. */
export class Playing {
  readonly button = button('▶ Play', () => this.toggle(), { 'data-tool': 'play', title: 'Play or stop' });
  /** Positions per second. */
  speed: number;
  private frame = 0;
  private due = 0;

  /** `get` returns what is played, or null. The panel has `data-playing` meanwhile, and playing stops when it is hidden. */
  constructor(
    private readonly panel: HTMLElement,
    speed: number,
    private readonly get: () => Played | null,
  ) {
    this.speed = speed;
  }

  /** Starts from the first position if the last one is shown. */
  toggle(): void {
    const played = this.get();
    if (this.frame) {
      this.pause();
    } else if (played) {
      if (played.at === played.count - 1) {
        played.go(0, false);
      }
      this.button.textContent = '⏸ Pause';
      this.panel.dataset.playing = 'true';
      this.due = performance.now();
      this.frame = requestAnimationFrame((now) => this.tick(now));
    }
  }

  /** Handles the keys of a view that plays: the arrows move by one position, and the space bar plays. Returns whether it used the key. */
  key(event: KeyboardEvent, move: (by: 1 | -1) => void): boolean {
    const by = MOVES[event.key];
    if (by && this.get()) {
      move(by);
    } else if (event.key === ' ' && !(event.target instanceof HTMLButtonElement)) {
      this.toggle();
    } else {
      return false;
    }
    return true;
  }

  /** Stops, and goes to the current position once more, so that other views follow. */
  pause(): void {
    const running = this.frame !== 0;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    delete this.panel.dataset.playing;
    this.button.textContent = '▶ Play';
    const played = running ? this.get() : null;
    played?.go(played.at, true);
  }

  private tick(now: number): void {
    const played = this.get();
    if (!played || played.at >= played.count - 1 || !this.panel.isConnected || this.panel.hidden) {
      this.pause();
      return;
    }
    const steps = Math.floor(((now - this.due) / 1000) * this.speed);
    if (steps > 0) {
      this.due += (steps * 1000) / this.speed;
      const next = Math.min(played.at + steps, played.count - 1);
      if (played.go(next, next === played.count - 1)) {
        this.pause();
        return;
      }
    }
    this.frame = requestAnimationFrame((later) => this.tick(later));
  }
}
