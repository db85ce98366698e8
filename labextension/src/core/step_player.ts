/** The position in the lines that one or two recorded programs executed, with breakpoints. */

import type { StepEvent, StepFacts } from './teaching';

/** One execution of a line, with its events. */
export interface LineStep {
  line: number;
  /** How often the program executed the line before. */
  occurrence: number;
  events: StepEvent[];
}

/** Groups the events of a program by executions of lines. */
export function lineSteps(events: readonly StepEvent[]): LineStep[] {
  const found: LineStep[] = [];
  const count = new Map<number, number>();
  let names = new Set<string>();
  for (const event of events) {
    const [line, what, name] = event;
    const last = found[found.length - 1];
    const again = what === 'set' && names.has(name);
    if (last?.line !== line || again) {
      const occurrence = count.get(line) ?? 0;
      count.set(line, occurrence + 1);
      found.push({ line, occurrence, events: [event] });
      names = new Set();
    } else {
      last.events.push(event);
    }
    if (what === 'set') {
      names.add(name);
    }
  }
  return found;
}

/** A position in the steps of the first program. The second program is at the same execution of the same line. */
export class StepPlayer {
  at = 0;
  readonly breakpoints = new Set<number>();
  readonly steps: LineStep[][];
  /** For each step of the first program, the step of the second one. */
  private readonly partner: number[] = [];

  constructor(facts: StepFacts) {
    this.steps = facts.runs.map((run) => lineSteps(run.events));
    if (this.steps.length > 1) {
      const places = new Map(this.steps[1].map((step, i) => [`${step.line}:${step.occurrence}`, i]));
      let last = 0;
      for (const step of this.steps[0]) {
        last = places.get(`${step.line}:${step.occurrence}`) ?? last;
        this.partner.push(last);
      }
    }
  }

  get count(): number {
    return this.steps[0].length;
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
