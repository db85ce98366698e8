/** The document's keys for the course, the verdict on an exercise and the question of a prediction, and their checks. */

import { type Check, count, flag, line, list, nullable, object, shaped, text, tuple, word } from './check';

/**
 * The verdict on an exercise. A case has its name, whether it passed, its device, and what is wrong. `hint` is the number of the hint to
 * offer (0: none), `of` their count, and `hints` are those that the card shows. `shown`: the case whose launch the card shows.
 * `solution`: the learner may see the solution. `notes` refuse nothing: numbers of an answer that passed, and launches that were left out.
 */
export interface Verdict {
  exercise: string;
  title: string;
  passed: boolean;
  headline: string;
  tries: number;
  cases: [string, boolean, string, string][];
  findings: { text: string; line: number | null; case: string }[];
  notes?: string[];
  hint: number;
  of: number;
  hints: string[];
  shown: string;
  solution: boolean;
}

/** A question. While `answer` is empty, the tabs with the keys `closed` stay shut; `reveals` are their titles. */
export interface Question {
  name: string;
  title: string;
  question: string;
  reveals: string[];
  closed: string[];
  answer: string;
  right: boolean;
  text: string;
}

const long = text(1 << 16);
/** The check of a verdict. */
export const verdict: Check = shaped<Verdict>(
  {
    exercise: word,
    title: word,
    passed: flag,
    headline: long,
    tries: count,
    cases: list(tuple(word, flag, word, long), 1000),
    findings: list(object({ text: long, line: nullable(line), case: word }), 1000),
    hint: count,
    of: count,
    hints: list(long, 100),
    shown: word,
    solution: flag,
  },
  { notes: list(long, 100) },
);

/** The check of a question. */
export const question: Check = shaped<Question>({
  name: word,
  title: word,
  question: long,
  reveals: list(word, 100),
  closed: list(word, 100),
  answer: long,
  right: flag,
  text: long,
});
