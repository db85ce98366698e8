/** What the Tiles view selects, in other views and in links: an access, a program, and the quantity and the side of the picture. */

import { type LinkParts, numberIn } from '../link_target';
import type { Selection, Store } from '../store';
import type { TileOp } from '../tiles';
import { QUANTITIES, type Quantity } from './tilesheet';

/** The choices of the Tiles view. `side`: of a dot, 0 or 1 for the operands, -1 for the result. */
export interface TileChoices {
  chosen: number;
  program: number;
  iteration: number;
  quantity: Quantity;
  side: number;
}

/** Writes choices for a link. */
export function tileParts({ chosen, program, iteration, quantity, side }: TileChoices): LinkParts {
  return {
    access: String(chosen),
    program: String(program),
    ...(iteration && { iteration: String(iteration) }),
    show: quantity,
    ...(side >= 0 && { operand: String(side) }),
  };
}

/** Reads choices. `last` has the largest number of an access and of a program. A choice that the link does not have stays. */
export function readTileParts(
  parts: LinkParts,
  last: { access: number; program: number },
  now: TileChoices,
  missing: (sentence: string) => void,
): TileChoices {
  return {
    chosen: numberIn(parts, 'access', last.access, missing) ?? now.chosen,
    program: numberIn(parts, 'program', last.program, missing) ?? now.program,
    iteration: numberIn(parts, 'iteration', Number.MAX_SAFE_INTEGER, missing) ?? 0,
    quantity: QUANTITIES.find((one) => one === parts.show) ?? now.quantity,
    side: numberIn(parts, 'operand', 1, missing) ?? -1,
  };
}

/** Returns the selection of an op. Op ids are valid for the target of the tiles; for another target it has the line only. */
export function selectionOf(store: Store, op: TileOp): Selection {
  const same = store.doc.tiles?.view === store.view;
  return { lines: op.line ? [op.line] : [], op: same ? op.op : null, from: 'tiles' };
}
