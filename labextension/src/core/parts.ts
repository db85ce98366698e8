/**
 * The optional parts of a document, each for a view. A part has an interface and a check in a file of its own, a field in `Parts`, and an
 * entry in `PARTS`. TypeScript reports a field without a check.
 */

import type { Check } from './check';
import { question, type Question, verdict, type Verdict } from './course_part';
import { memory, type Memory } from './memory_part';
import { sweep, type Sweep } from './sweep_part';
import { workers, type Workers } from './workers_part';

/** The parts by their keys in the document. A part is absent if there is nothing to show, and then its view says why. */
export interface Parts {
  memory?: Memory;
  sweep?: Sweep;
  workers?: Workers;
  verdict?: Verdict;
  question?: Question;
}

/** The check of each part. A document may come from a stranger. */
export const PARTS: Readonly<Record<keyof Parts, Check>> = { memory, sweep, workers, verdict, question };
