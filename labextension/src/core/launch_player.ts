/** The position in the steps of a launch, in units of iterations, programs or waves, and the bytes that are counted up to it. */

import type { LaunchFacts } from './teaching';

/** What one move of the player covers. */
export type Unit = 'iteration' | 'program' | 'wave';
export const UNITS: readonly Unit[] = ['iteration', 'program', 'wave'];

/** Returns, for example, "the loops in lines 5 and 7", or '' without loops. */
function spelled(lines: readonly number[] = []): string {
  return lines.length ? `the loop${lines.length > 1 ? 's in lines' : ' in line'} ${lines.join(' and ')}` : '';
}

/** A position among the steps of a launch. */
export class LaunchPlayer {
  /** The index of the current group of steps. */
  at = 0;
  private groups: [number, number][] = [];
  private readonly sums: Float64Array[];
  private readonly perProgram = new Map<number, number>();
  /** For each step, the lines of the loops around it; '' outside of loops. */
  private readonly paths: string[];

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
    this.paths = facts.steps.map(([, , , accesses]) => {
      const paths = accesses.map(([op]) => facts.loops?.[op] ?? []);
      return spelled(paths.reduce((a, b) => (b.length > a.length ? b : a), []));
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

  /** Returns the place of a step among those of its program in the same loops, and the name of its loops if the program has several. */
  loopPlace(step: number): { iteration: number; of: number; loops: string } {
    const { steps } = this.facts;
    const rank = steps[step][0][0];
    const first = steps.findIndex(([[other]]) => other === rank);
    const mine = this.paths.slice(first, first + this.iterations(rank));
    const loops = mine[step - first];
    const same = mine.filter((other) => other === loops);
    const several = new Set(mine.filter(Boolean)).size > 1;
    return {
      iteration: mine.slice(0, step - first).filter((other) => other === loops).length,
      of: same.length,
      loops: several ? loops : '',
    };
  }

  /** Returns the first line of an access of a step in its innermost loop. */
  lineOf(step: number): number {
    const { ops, loops, steps } = this.facts;
    const wanted = this.paths[step];
    const op = steps[step][3].find(([one]) => spelled(loops?.[one]) === wanted);
    return op ? ops[op[0]][2] : 0;
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

  /**
   * Returns the group of a program's iteration (or of its last one before), or undefined if the steps do not have the program. With a line
   * that accesses memory, iterations are the executions of that line.
   */
  find(program: number, iteration: number, line: number | null = null): number | undefined {
    const { ops, steps } = this.facts;
    const mine = steps.flatMap(([[, number]], step) => (number === program ? [step] : []));
    const withLine = mine.filter((step) => steps[step][3].some(([op]) => ops[op][2] === line));
    const chosen = withLine.length ? withLine : mine;
    const place = withLine.length ? Math.min(iteration, chosen.length - 1) : -1;
    const found =
      place >= 0 ? chosen[place] : mine.filter((step, i) => i === 0 || steps[step][1] <= iteration).pop();
    return found === undefined ? undefined : this.groups.findIndex(([, to]) => to >= found);
  }

  /** Returns the bytes up to the end of the current group: loaded, loaded for the first time, stored. */
  counted(): number[] {
    return this.sums.map((sum) => sum[this.span[1] + 1]);
  }
}
