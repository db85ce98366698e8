/** What the list of passes says about each pass: its effect, and its notes. */

import type { Note, Stage } from '../schema';

/** Returns the effect of a pass on the number of ops. */
export function effect(stage: Stage, index: number): string {
  if (index === 0) {
    return `${stage.ops} ops${stage.edited ? ', edited' : ''}`;
  }
  if (stage.skipped) {
    return 'disabled';
  }
  if (stage.edited) {
    return `${stage.ops} ops, edited`;
  }
  if (!stage.changed) {
    return 'no change';
  }
  return stage.delta === 0
    ? `${stage.ops} ops, unchanged`
    : `${stage.ops} ops (${stage.delta > 0 ? '+' : '−'}${Math.abs(stage.delta)})`;
}

/** Returns why a pass without notes changed nothing. */
export function unchangedReason(stage: Stage, index: number): string {
  if (index === 0 || stage.changed) {
    return '';
  }
  return stage.skipped ? 'The pass is disabled.' : 'The pass does not apply to this kernel.';
}

/** Returns how many notes a pass left: "3 notes, 1 missed", or ''. */
export function noteCount(notes: readonly Note[], missed: number): string {
  if (!notes.length) {
    return '';
  }
  return `${notes.length} note${notes.length > 1 ? 's' : ''}${missed ? `, ${missed} missed` : ''}`;
}
