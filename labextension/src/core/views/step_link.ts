/** How links name what the Step view shows: its programs, the executed line by its number, and a value by its name and line. */

import { type LinkParts, numberIn } from '../link_target';
import type { StepFacts } from '../teaching';

/** A value of the view: the run (0, or 1 for the second program), its name, and the line that made it. */
export interface ChosenValue {
  run: number;
  name: string;
  line: number;
}

/** Writes the state of the view for a link. */
export function stepParts(facts: StepFacts, at: number, chosen: ChosenValue | null): LinkParts {
  const [first, second] = facts.runs;
  return {
    program: String(first.program),
    ...(second && { compare: String(second.program) }),
    step: String(at),
    ...(chosen && { value: `${chosen.name}.${chosen.line}${chosen.run ? '.compare' : ''}` }),
  };
}

/** Returns the programs that a link names, or null if the view shows them already. */
export function otherPrograms(
  parts: LinkParts,
  facts: StepFacts,
  missing: (sentence: string) => void,
): number[] | null {
  const last = facts.grid.reduce((a, b) => a * b, 1) - 1;
  const found = ['program', 'compare'].flatMap((name) => numberIn(parts, name, last, missing) ?? []);
  const shown = facts.runs.map((run) => run.program);
  return found.every((program, i) => program === shown[i]) ? null : found;
}

/** Reads a value of a link. */
export function valueIn({ value = '' }: LinkParts): ChosenValue | null {
  const [, name, line, second] = /^(.+?)\.(\d{1,9})(\.compare)?$/.exec(value) ?? [];
  return name ? { run: second ? 1 : 0, name, line: Number(line) } : null;
}
