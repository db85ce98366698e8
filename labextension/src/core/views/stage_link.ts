/** How links name the stages of a compilation, `coalesce.12`: the name, and the place in the list, which finds the nearest stage if the name is gone. */

import type { LinkParts, ViewLink } from '../link_target';
import type { Stage } from '../schema';

/** Writes a stage for a link. '' for none. */
export function stageText(stages: readonly Stage[], at: number): string {
  return stages[at] ? `${stages[at].name}.${at}` : '';
}

/** Returns the place of a stage that a link names, or the nearest one, with a sentence. -1: there are no stages. */
export function findStage(
  stages: readonly Stage[],
  text: string,
  missing: (sentence: string) => void,
): number {
  const [, name, number] = /^(.*?)(?:\.(\d{1,4}))?$/.exec(text)!;
  const place = Math.min(Number(number ?? 0), stages.length - 1);
  const same = stages.flatMap((stage, i) => (stage.name === name ? [i] : []));
  if (same.length) {
    return same.reduce((best, i) => (Math.abs(i - place) < Math.abs(best - place) ? i : best));
  }
  missing(
    stages.length
      ? `There is no pass ${name}; the pass at its place is ${stages[place].name}`
      : `There is no pass ${name}`,
  );
  return place;
}

/** The link of a view that shows a stage, and compares it with another one (-1: none). */
export function stageLink(
  stages: () => readonly Stage[],
  now: () => readonly [chosen: number, base: number],
  show: (chosen: number, base: number) => void,
): ViewLink {
  return {
    now(): LinkParts {
      const [chosen, base] = now().map((at) => stageText(stages(), at));
      return { ...(chosen && { pass: chosen }), ...(base && { with: base }) };
    },
    follow(parts, missing) {
      if (parts.pass) {
        const base = parts.with ? findStage(stages(), parts.with, missing) : -1;
        show(findStage(stages(), parts.pass, missing), base);
      }
    },
  };
}
