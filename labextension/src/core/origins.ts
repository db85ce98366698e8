/** Which ops of one stage come from which ops of an earlier stage of the same compilation. */

import type { Stage } from './schema';

/**
 * Maps each op that stages `from + 1` to `to` made to the ops of stage `from` that it replaces or copies. An op of a pass may come from
 * an op of a pass between the two.
 */
export function origins(stages: readonly Stage[], from: number, to: number): Map<number, number[]> {
  const found = new Map<number, number[]>();
  for (const stage of stages.slice(from + 1, to + 1)) {
    for (const [id, was] of Object.entries(stage.origin)) {
      const roots = was.flatMap((op) => found.get(op) ?? [op]);
      found.set(Number(id), [...new Set(roots)]);
    }
  }
  return found;
}
