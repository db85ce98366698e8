/**
 * The head of a card of the course: the verdict on an exercise, with findings that link to lines of the cell, and the question of a
 * prediction, whose tabs stay shut until the learner answers. The texts come from the kernel; see blocknb/notebook/verdicts.py for a page without scripts.
 */

import { button, h, renderBackquotes } from './dom';
import type { Question, Verdict } from './schema';
import type { Store } from './store';
import type { ViewSpec } from './views/spec';

/** Tells whether the card asks a question that has no answer yet. */
export function veiled(store: Store): boolean {
  return store.doc.question !== undefined && !store.doc.question.answer;
}

/** Returns why a view is empty, or null: it has no content, or it shows the answer of an open question. */
export function whyEmpty(view: ViewSpec, store: Store): string | null {
  const { question } = store.doc;
  return veiled(store) && question!.closed.includes(view.key)
    ? `${view.title} would tell the answer. It opens after your answer: %predict ${question!.name} ...`
    : view.empty(store.doc, store);
}

/** What stands between the title and the facts of a card. Empty without an exercise and a question. */
export interface VerdictHead {
  element: HTMLElement;
  paint(): void;
}

/** Creates the head of the course. */
export function verdictHead(store: Store): VerdictHead {
  const element = h('div.bnb-course');
  let painted = '';
  const paint = (): void => {
    const { verdict, question } = store.doc;
    const now = JSON.stringify([verdict, question, store.host.request !== undefined]);
    if (now === painted) {
      return; // an answer that the user types stays, also if the same card comes again with more facts or another connection
    }
    painted = now;
    element.replaceChildren(
      ...(verdict ? [verdictPart(store, verdict, paint)] : []),
      ...(question ? [questionPart(store, question)] : []),
    );
    element.hidden = !verdict && !question;
  };
  paint();
  return { element, paint };
}

function verdictPart(store: Store, verdict: Verdict, paint: () => void): HTMLElement {
  const names = [...new Set(verdict.cases.map(([name]) => name))];
  const good = names.filter((name) => verdict.cases.every(([other, ok]) => other !== name || ok));
  const right = names.length ? `${good.length} of ${names.length} cases` : '';
  const refused = right && !verdict.passed && good.length === names.length;
  const count = refused ? `not accepted, although ${right} give the right result` : right;
  const tries = verdict.passed ? '' : `try ${verdict.tries}`;
  const shown = verdict.shown && names.length > 1 ? `below: the launch of ${verdict.shown}` : '';
  return h(
    'section.bnb-verdict-head',
    { 'data-passed': String(verdict.passed), role: 'group', 'aria-label': `Verdict on ${verdict.exercise}` },
    h(
      'div.bnb-verdict-line',
      {},
      h('strong.bnb-verdict-word', {}, verdict.passed ? '✓ passed' : '✗ not yet'),
      h('span', {}, `${verdict.exercise}: ${verdict.title}`),
      h('span.bnb-quiet', {}, [count, tries, shown].filter(Boolean).join(' · ')),
    ),
    verdict.cases.length ? h('div.bnb-cases', { role: 'list' }, ...verdict.cases.map(caseMark)) : null,
    verdict.findings.length
      ? h('ol.bnb-findings', {}, ...verdict.findings.map((finding) => findingItem(store, finding)))
      : null,
    verdict.notes?.length
      ? h('ul.bnb-notes', {}, ...verdict.notes.map((text) => h('li', {}, ...renderBackquotes(text))))
      : null,
    ...verdict.hints.map((text, i) =>
      h('p.bnb-hint', {}, h('strong', {}, `Hint ${i + 1}: `), ...renderBackquotes(text)),
    ),
    nextStep(store, verdict, paint),
  );
}

function caseMark([name, passed, device, text]: Verdict['cases'][number]): HTMLElement {
  const where = device === 'cpu' ? '' : ` (${device})`;
  const title = text || (passed ? 'passed' : 'failed');
  return h(
    'span.bnb-case',
    { role: 'listitem', 'data-passed': String(passed), title },
    `${passed ? '✓' : '✗'} ${name}${where}`,
  );
}

function findingItem(store: Store, { text, line, case: name }: Verdict['findings'][number]): HTMLElement {
  const link =
    line === null
      ? null
      : button(`line ${line}`, () => store.pin({ lines: [line], op: null, from: 'verdict' }), {
          title: `Highlight line ${line} of the cell`,
        });
  return h('li', {}, ...renderBackquotes(name ? `${name}: ${text}` : text), link ? ' ' : null, link);
}

/** Offers the next hint: as a button with a live kernel, otherwise as the magic that shows it. */
function nextStep(store: Store, verdict: Verdict, paint: () => void): HTMLElement | null {
  const parts: (Node | string)[] = [];
  if (verdict.hint && store.host.request) {
    const ask = async (): Promise<void> => {
      const answer = (await store.host.request?.('hint', {})) as { verdict: Verdict };
      store.doc = { ...store.doc, verdict: answer.verdict };
      store.host.save?.(store.doc);
      paint();
    };
    const next = button(
      `Hint ${verdict.hint} of ${verdict.of}`,
      () => {
        next.disabled = true; // a second click would count another hint
        store.run(ask().finally(() => (next.disabled = false)));
      },
      { title: 'Show the next hint' },
    );
    parts.push(next);
  } else if (verdict.hint) {
    parts.push(...renderBackquotes(`\`%hint\` shows hint ${verdict.hint} of ${verdict.of}.`));
  }
  if (verdict.solution) {
    parts.push(...renderBackquotes(' `%solution` shows the solution.'));
  }
  return parts.length ? h('p.bnb-next', {}, ...parts) : null;
}

function questionPart(store: Store, question: Question): HTMLElement {
  const paragraphs = question.question
    .trim()
    .split('\n\n')
    .map((text) => h('p', {}, ...renderBackquotes(text)));
  const element = h(
    'section.bnb-question',
    {
      role: 'group',
      'aria-label': `Prediction ${question.name}`,
      'data-answered': String(question.answer !== ''),
    },
    h('strong', {}, question.title),
    ...paragraphs,
  );
  if (question.answer) {
    const mark = question.right ? '✓ right' : '✗ not right';
    element.append(
      h(
        'p',
        { role: 'status' },
        'Your answer: ',
        h('code', {}, question.answer),
        ' ',
        h('strong.bnb-verdict-word', { 'data-right': String(question.right) }, mark),
        ...renderBackquotes(question.text ? `. ${question.text}` : ''),
      ),
    );
  } else if (store.host.request) {
    element.append(answerForm(store));
  } else {
    element.append(
      h('p.bnb-quiet', {}, ...renderBackquotes(`Answer with \`%predict ${question.name} ...\``)),
    );
  }
  return element;
}

function answerForm(store: Store): HTMLElement {
  const field = h('input.bnb-answer', { type: 'text', 'aria-label': 'Your answer', autocomplete: 'off' });
  const send = h('button.bnb-button', { type: 'submit' }, 'Answer');
  const form = h('form.bnb-answer-form', {}, field, send);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const answer = field.value.trim();
    if (answer && !send.disabled) {
      send.disabled = true; // the first answer is the one that the progress keeps
      const ask = async (): Promise<void> => {
        const { document } = (await store.host.request?.('predict', { answer })) as {
          document: Store['doc'];
        };
        store.update(document);
        store.host.save?.(document);
      };
      store.run(ask().finally(() => (send.disabled = false)));
    }
  });
  form.addEventListener('keydown', (event) => event.stopPropagation());
  return form;
}
