/** The history of an op: the passes that created, moved, retyped and removed it. */

import type { Stage } from '../schema';

/** Describes the history of an op. The stages are those of one compilation, in order. */
export function opHistory(stages: readonly Stage[], op: number): string {
  const parts: string[] = [];
  stages.forEach((stage) => {
    if (stage.made.includes(op)) {
      const from = stage.origin[String(op)];
      parts.push(`created by ${stage.name}${from?.length ? ` from op ${from.join(', ')}` : ''}`);
    }
    if (stage.moved.includes(op)) {
      parts.push(`moved by ${stage.name}`);
    }
    if (stage.retyped.includes(op)) {
      parts.push(`retyped by ${stage.name}`);
    }
    if (stage.deleted.includes(op)) {
      const successors = Object.entries(stage.origin).filter(([, origins]) => origins.includes(op));
      const into = successors.length ? `, replaced by op ${successors.map(([id]) => id).join(', ')}` : '';
      parts.push(`removed by ${stage.name}${into}`);
    }
  });
  return parts.length ? `op ${op}: ${parts.join('; ')}` : `op ${op}`;
}
