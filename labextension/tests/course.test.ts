/** The head of a card of the course: the verdict on an exercise, the next hint, and a question that keeps tabs shut. */

import { beforeAll, describe, expect, test, vi } from 'vitest';

import { problemOf } from '../src/core/documents';
import type { Host } from '../src/core/host';
import type { Document, Question, Verdict } from '../src/core/schema';
import { fixture, shown, until } from './fixtures';

const failed: Verdict = {
  exercise: 'add-1',
  title: 'Add two vectors',
  passed: false,
  headline: '1 of 2 cases',
  tries: 2,
  cases: [
    ['n=8', true, 'cpu', ''],
    ['n=9', false, 'cpu', 'program 1 loads element 9'],
    ['n=9', false, 'interpreted', ''],
  ],
  findings: [
    { text: 'the mask is missing: `mask=inside`', line: 5, case: 'n=9' },
    { text: '<b>bold</b>', line: null, case: '' },
  ],
  hint: 1,
  of: 3,
  hints: [],
  shown: 'n=8',
  solution: false,
};
const asked: Question = {
  name: 'predict-blocks',
  title: 'How many programs?',
  question: 'A vector has `n` elements.\n\nHow many programs?',
  reveals: ['Footprint'],
  closed: ['footprint', 'launch'],
  answer: '',
  right: false,
  text: '',
};
const withVerdict = (verdict: Verdict): Document => ({ ...fixture('learn'), verdict });
const withQuestion = (question: Question): Document => ({ ...fixture('learn'), question });
const text = (root: Element, selector: string): string => root.querySelector(selector)?.textContent ?? '';
const click = (root: Element, name: string): void =>
  [...root.querySelectorAll('button')].find((b) => b.textContent === name)!.click();

beforeAll(() => {
  HTMLCanvasElement.prototype.getContext = () => null; // jsdom draws nothing
});

describe('the verdict', () => {
  test('heads the card with its cases and its findings as text', () => {
    const { root } = shown(withVerdict(failed));
    expect(text(root, '.bnb-verdict-line')).toContain('✗ not yet');
    expect(text(root, '.bnb-verdict-line')).toContain('1 of 2 cases · try 2 · below: the launch of n=8');
    const cases = [...root.querySelectorAll('.bnb-case')].map((e) => e.textContent);
    expect(cases).toEqual(['✓ n=8', '✗ n=9', '✗ n=9 (interpreted)']);
    expect(root.querySelector('.bnb-findings b')).toBeNull();
    expect(text(root, '.bnb-findings')).toContain('<b>bold</b>');
    expect(text(root, '.bnb-findings code')).toBe('mask=inside');
    const head = root.querySelector('.bnb-head')!;
    const order = [...head.children].map((e) => e.className);
    expect(order.indexOf('bnb-course')).toBeLessThan(order.indexOf('bnb-glance'));
  });

  test('lists the numbers of an answer that passed', () => {
    const notes = ['168 registers per thread', '`wgmma`: 4'];
    const passed = { ...failed, passed: true, findings: [], notes };
    const { root } = shown(withVerdict(passed));
    expect([...root.querySelectorAll('.bnb-notes li')].map((e) => e.textContent)).toEqual([
      notes[0],
      'wgmma: 4',
    ]);
    expect(shown(withVerdict(failed)).root.querySelector('.bnb-notes')).toBeNull();
    expect(problemOf(withVerdict({ ...passed, notes: [1] as unknown as string[] }))).toContain('notes');
  });

  test('says that an answer with right results is not accepted', () => {
    const cases: Verdict['cases'] = [
      ['n=8', true, 'cpu', ''],
      ['n=9', true, 'cpu', ''],
    ];
    const { root } = shown(withVerdict({ ...failed, cases }));
    expect(text(root, '.bnb-verdict-line')).toContain(
      'not accepted, although 2 of 2 cases give the right result',
    );
  });

  test('links a finding to the line of the cell', () => {
    const highlightSource = vi.fn();
    const { root } = shown(withVerdict(failed), { state: 'live', highlightSource });
    click(root, 'line 5');
    expect(highlightSource).toHaveBeenLastCalledWith([5], []);
  });

  test('asks a live kernel for the next hint and saves it; a saved card names the magic', async () => {
    const save = vi.fn();
    const next = { ...failed, hints: ['Which elements?'], hint: 0, solution: true };
    const request = vi.fn().mockResolvedValue({ verdict: next });
    const { root } = shown(withVerdict(failed), { state: 'live', request, save } as Host);
    click(root, 'Hint 1 of 3');
    await until(() => text(root, '.bnb-hint') === 'Hint 1: Which elements?');
    expect(request).toHaveBeenCalledWith('hint', {});
    expect(save.mock.calls[0][0].verdict).toEqual(next);
    expect(text(root, '.bnb-next')).toContain('%solution');
    const unanswered = shown(withVerdict(failed)).root;
    expect(text(unanswered, '.bnb-next')).toBe('%hint shows hint 1 of 3.');
    expect(unanswered.querySelector('.bnb-next button')).toBeNull();
  });

  test('is absent from other cards', () => {
    const { root } = shown(fixture('learn'));
    expect(root.querySelector<HTMLElement>('.bnb-course')!.hidden).toBe(true);
  });
});

describe('a question', () => {
  test('keeps the tabs that tell shut, and the facts folded away', () => {
    const { root, open } = shown(withQuestion(asked));
    expect(open('footprint').textContent).toContain('It opens after your answer: %predict predict-blocks');
    expect(open('step').textContent).not.toContain('your answer');
    expect(root.querySelector<HTMLElement>('.bnb-fold')!.hidden).toBe(true);
    expect(text(root, '.bnb-question')).toContain('Answer with %predict predict-blocks ...');
  });

  test('takes an answer, which opens the tabs', async () => {
    const answered = { ...asked, answer: '9, 240', text: 'round `up`' };
    const request = vi.fn().mockResolvedValue({ document: withQuestion(answered) });
    const { root, open } = shown(withQuestion(asked), { state: 'live', request } as Host);
    open('footprint');
    root.querySelector<HTMLInputElement>('.bnb-answer')!.value = ' 9, 240 ';
    const form = root.querySelector<HTMLFormElement>('.bnb-answer-form')!;
    form.requestSubmit();
    form.requestSubmit(); // an impatient learner
    await until(() => text(root, '.bnb-question [role=status]') !== '');
    expect(request.mock.calls).toEqual([['predict', { answer: '9, 240' }]]);
    expect(text(root, '.bnb-question [role=status]')).toBe('Your answer: 9, 240 ✗ not right. round up');
    expect(open('footprint').textContent).not.toContain('your answer');
    expect(root.querySelector<HTMLElement>('.bnb-fold')!.hidden).toBe(false);
  });
});

test('a document is refused if a part of the course has another type', () => {
  expect(problemOf(withVerdict(failed))).toBe('');
  expect(problemOf(withQuestion(asked))).toBe('');
  for (const wrong of [{ cases: [['a']] }, { findings: [{}] }, { hint: -1 }, { hints: 'a' }, { title: 3 }]) {
    expect(problemOf(withVerdict({ ...failed, ...wrong } as Verdict))).toContain('verdict');
  }
  for (const wrong of [{ closed: 'footprint' }, { answer: null }, { right: 1 }]) {
    expect(problemOf(withQuestion({ ...asked, ...wrong } as unknown as Question))).toContain('question');
  }
});
