/** The position in the steps of a launch, in units of iterations, programs or waves, and the bytes that are counted up to it. */

import type { LaunchFacts } from './teaching';

/** What one move of the player covers. */
export type Unit = 'iteration' | 'program' | 'wave';

/** A position among the steps of a launch. */
export class LaunchPlayer {
  /** The index of the current group of steps. */
  at = 0;
  private groups: [number, number][] = [];
  private readonly sums: Float64Array[];
  private readonly perProgram = new Map<number, number>();

  constructor(
    private readonly facts: LaunchFacts,
    public unit: Unit,
  ) {
    this.sums = [0, 1, 2].map((i) => {
      const found = new Float64Array(facts.steps.length + 1);
      found[0] = facts.before[i];
      facts.steps.forEach(([, , bytes], step) => (found[step + 1] = found[step] + bytes[i]));
      return found;
    });
    for (const [[rank]] of facts.steps) {
      this.perProgram.set(rank, this.iterations(rank) + 1);
    }
    this.choose(unit);
  }

  /** The number of programs that run together. */
  get together(): number {
    const { machine, programs } = this.facts;
    return machine ? machine.multiprocessors * machine.each : programs;
  }

  /** The number of groups. */
  get count(): number {
    return this.groups.length;
  }

  /** The first and the last step of the current group. */
  get span(): [number, number] {
    return this.groups[this.at];
  }

  /** Returns the number of steps of a program. */
  iterations(rank: number): number {
    return this.perProgram.get(rank) ?? 0;
  }

  /** Groups the steps by a unit, and stays at the current step. */
  choose(unit: Unit): void {
    const step = this.groups[this.at]?.[0] ?? 0;
    this.unit = unit;
    this.groups = [];
    let last = -1;
    this.facts.steps.forEach(([[rank]], i) => {
      const group = unit === 'iteration' ? i : unit === 'program' ? rank : Math.floor(rank / this.together);
      if (group === last) {
        this.groups[this.groups.length - 1][1] = i;
      } else {
        this.groups.push([i, i]);
      }
      last = group;
    });
    this.at = Math.max(
      0,
      this.groups.findIndex(([, to]) => to >= step),
    );
  }

  /** Moves to a group, or to the nearest one. */
  go(at: number): void {
    this.at = Math.max(0, Math.min(this.groups.length - 1, at));
  }

  /** Returns the group of a program's iteration (or of its last one before), or undefined if the steps do not have the program. */
  find(program: number, iteration: number): number | undefined {
    let found: number | undefined;
    this.facts.steps.forEach(([[, number], i], step) => {
      if (number === program && (found === undefined || i <= iteration)) {
        found = step;
      }
    });
    return found === undefined ? undefined : this.groups.findIndex(([, to]) => to >= found!);
  }

  /** Returns the bytes up to the end of the current group: loaded, loaded for the first time, stored. */
  counted(): number[] {
    return this.sums.map((sum) => sum[this.span[1] + 1]);
  }
}
