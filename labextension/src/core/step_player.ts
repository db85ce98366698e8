/** The position in the lines that one or two recorded programs executed, with breakpoints. */

import type { StepEvent, StepFacts } from './teaching';

/** One execution of a line, with its events. */
export interface LineStep {
  line: number;
  /** The lines of the calls that lead to a line of a helper, outermost first. */
  calls: number[];
  /** How often the program executed the line before. */
  occurrence: number;
  /** How often the program came back to this execution of the line, from helpers that the line calls. */
  back: number;
  events: StepEvent[];
}

/**
 * Groups the events of a program by executions of lines. A line that calls a helper is one step before the lines of the helper, if it has
 * events before the call, and one step after them, with all its events.
 */
export function lineSteps(events: readonly StepEvent[], calls: readonly number[][] = []): LineStep[] {
  const found: LineStep[] = [];
  const count = new Map<number, number>();
  /** The last step of the kernel, of the helper that it is in, and so on, with the names that it assigned. */
  const open: ({ step: LineStep; names: Set<string> } | undefined)[] = [];
  events.forEach((event, i) => {
    const [line, what, name] = event;
    const chain = calls[i] ?? [];
    const last = open[chain.length];
    const called = open.length > chain.length + 1;
    open.length = Math.min(open.length, chain.length + 1);
    const again = what === 'set' && last?.names.has(name);
    if (!last || last.step.line !== line || last.step.calls.join() !== chain.join() || again) {
      const occurrence = count.get(line) ?? 0;
      count.set(line, occurrence + 1);
      const step = { line, calls: chain, occurrence, back: 0, events: [event] };
      open[chain.length] = { step, names: new Set(what === 'set' ? [name] : []) };
      found.push(step);
      return;
    }
    if (called) {
      last.step = { ...last.step, back: last.step.back + 1, events: [...last.step.events, event] };
      found.push(last.step);
    } else {
      last.step.events.push(event);
    }
    if (what === 'set') {
      last.names.add(name);
    }
  });
  return found;
}

const keyOf = (step: LineStep): string => `${step.line}:${step.occurrence}:${step.back}`;

/** A position in the steps of the first program. The second program is at the same execution of the same line. */
export class StepPlayer {
  at = 0;
  readonly breakpoints = new Set<number>();
  readonly steps: LineStep[][];
  /** For each step of the first program, the step of the second one. */
  private readonly partner: number[] = [];

  constructor(facts: StepFacts) {
    this.steps = facts.runs.map((run) => lineSteps(run.events, run.calls));
    if (this.steps.length > 1) {
      const places = new Map(this.steps[1].map((step, i) => [keyOf(step), i]));
      let last = 0;
      for (const step of this.steps[0]) {
        last = places.get(keyOf(step)) ?? last;
        this.partner.push(last);
      }
    }
  }

  get count(): number {
    return this.steps[0].length;
  }

  /** The first step after the arguments. */
  get firstTile(): number {
    const [steps] = this.steps;
    return Math.max(
      0,
      steps.findIndex((one) => one.line !== steps[0].line),
    );
  }

  /** Returns the position of a program: the index of its step. */
  position(run: number): number {
    return run === 0 ? this.at : (this.partner[this.at] ?? 0);
  }

  /** Returns the current line of a program. */
  line(run = 0): number | undefined {
    return this.steps[run][this.position(run)]?.line;
  }

  go(at: number): void {
    this.at = Math.max(0, Math.min(this.count - 1, at));
  }

  /** Whether a step is in a helper. */
  get helpers(): boolean {
    return this.steps[0].some((step) => step.calls.length > 0);
  }

  /** Moves to the next step outside of the helpers that the current line calls, or to the end. */
  over(): void {
    const depth = this.steps[0][this.at].calls.length;
    const next = this.steps[0].findIndex((step, i) => i > this.at && step.calls.length <= depth);
    this.go(next < 0 ? this.count - 1 : next);
  }

  /** Moves to the next step at a breakpoint in a direction, or to the end. */
  run(by: 1 | -1): void {
    let at = this.at + by;
    while (at > 0 && at < this.count - 1 && !this.breakpoints.has(this.steps[0][at].line)) {
      at += by;
    }
    this.go(at);
  }

  /** Returns, for each line, the last execution of a program up to its position. */
  latest(run: number): Map<number, LineStep> {
    const found = new Map<number, LineStep>();
    for (let i = 0; i <= Math.min(this.position(run), this.steps[run].length - 1); i++) {
      found.set(this.steps[run][i].line, this.steps[run][i]);
    }
    return found;
  }

  /** Returns the index of the first step of a line in an iteration (or the last one before it), or undefined. */
  find(line: number, occurrence = 0): number | undefined {
    const places = this.steps[0].flatMap((step, i) =>
      step.line === line && step.occurrence <= occurrence ? [i] : [],
    );
    return places[places.length - 1];
  }
}
