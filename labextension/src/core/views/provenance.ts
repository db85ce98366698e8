/** The life of one op: which pass made it and from what, which moved or retyped it, which removed it. */

import type { Stage } from '../schema';

/** One sentence on an op; the stages are those of one compilation, in order. */
export function story(stages: readonly Stage[], op: number): string {
  const parts: string[] = [];
  stages.forEach((stage) => {
    if (stage.made.includes(op)) {
      const from = stage.origin[String(op)];
      parts.push(`made by ${stage.name}${from?.length ? ` in place of op ${from.join(', ')}` : ''}`);
    }
    if (stage.moved.includes(op)) {
      parts.push(`moved by ${stage.name}`);
    }
    if (stage.retyped.includes(op)) {
      parts.push(`retyped by ${stage.name}`);
    }
    if (stage.deleted.includes(op)) {
      const heirs = Object.entries(stage.origin).filter(([, was]) => was.includes(op));
      const into = heirs.length ? `, replaced by op ${heirs.map(([id]) => id).join(', ')}` : '';
      parts.push(`removed by ${stage.name}${into}`);
    }
  });
  return parts.length ? `op ${op}: ${parts.join('; ')}` : `op ${op}`;
}
