/** The editor of a stage's IR in the Passes view, with a kernel that a function stands for. */

import { describe, expect, test, vi } from 'vitest';

import { fixture, saved, shown, until } from './fixtures';

const text = (element: Element): string => element.textContent ?? '';

describe('edits of a stage', () => {
  /** Answers of a kernel, by request. */
  const kernel = (answers: Record<string, unknown[]>) =>
    vi.fn((what: string, _content: Record<string, unknown>) => {
      const answer = answers[what].shift();
      return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
    });
  const named = (panel: HTMLElement, label: string): HTMLButtonElement | undefined =>
    [...panel.querySelectorAll<HTMLButtonElement>('button')].find((found) => text(found) === label);
  const field = (panel: HTMLElement): HTMLTextAreaElement | null => panel.querySelector('textarea');

  test('a page without a kernel offers no edit', () => {
    const panel = shown(fixture('scale')).open('passes');
    expect(named(panel, 'Edit')!.hidden).toBe(true);
    expect(named(panel, 'Discard edits')!.hidden).toBe(true);
  });

  test('the text goes to the kernel, and the result is shown and saved; edits can be discarded', async () => {
    const doc = fixture('scale');
    const next = fixture('scale');
    next.views[0].stages![0].edited = true;
    const request = kernel({
      stage_text: [{ text: 'one\ntwo' }],
      edit: [{ document: next }, { document: fixture('scale') }],
    });
    const save = vi.fn();
    const panel = shown(doc, { ...saved, state: 'live', request, save }).open('passes');
    named(panel, 'Edit')!.click();
    await until(() => field(panel));
    expect(named(panel, 'Edit')!.hidden).toBe(true);
    const edited = field(panel)!;
    expect(edited.value).toBe('one\ntwo');
    edited.value = 'one\nthree';
    named(panel, 'Compile')!.click();
    await until(() => field(panel) === null);
    const { view } = request.mock.calls[0][1];
    const stage = doc.views[view as number].stages!.find((one, i) => i > 0 && one.changed)!.name;
    const edits = () => request.mock.calls.filter(([what]) => what !== 'changes');
    expect(edits()).toEqual([
      ['stage_text', { view, stage }],
      ['edit', { view, stage, text: 'one\nthree' }],
    ]);
    expect(save).toHaveBeenCalledWith(next);
    await until(() => text(panel).includes('Compiled from the edited IR after'));
    await until(() => named(panel, 'Discard edits')?.hidden === false);
    named(panel, 'Discard edits')!.click();
    await until(() => named(panel, 'Discard edits')!.hidden);
    expect(edits().at(-1)).toEqual(['edit', { stage: null }]);
  });

  test('a problem is shown with its line and carets, and its place is selected', async () => {
    const problem = {
      message: 'no op is called ad',
      hint: 'did you mean add',
      line: 2,
      column: 2,
      end_column: 4,
    };
    const request = kernel({
      stage_text: [{ text: 'first\n  ad %x' }],
      edit: [{ problem }, new Error('the kernel has stopped')],
    });
    const panel = shown(fixture('scale'), { ...saved, state: 'live', request }).open('passes');
    named(panel, 'Edit')!.click();
    await until(() => field(panel));
    field(panel)!.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true }));
    await until(() => text(panel).includes('no op is called ad'));
    const shownProblem = panel.querySelector('[role=alert]')!;
    expect(shownProblem.querySelector('pre')!.textContent).toBe('  ad %x\n  ^^');
    expect(text(shownProblem)).toContain('did you mean add');
    const { selectionStart, selectionEnd, value } = field(panel)!;
    expect(value.slice(selectionStart, selectionEnd)).toBe('ad');
    named(panel, 'Compile')!.click();
    await until(() => text(shownProblem).includes('the kernel has stopped'));
    expect(field(panel)!.value).toBe(value);
  });

  test('another pass keeps the text for later, and Cancel drops it', async () => {
    const request = kernel({ stage_text: [{ text: 'as compiled' }, { text: 'again' }] });
    const panel = shown(fixture('scale'), { ...saved, state: 'live', request }).open('passes');
    named(panel, 'Edit')!.click();
    await until(() => field(panel));
    field(panel)!.value = 'my draft';
    const first = panel.querySelector('[data-stage][aria-selected=true]')!.getAttribute('data-stage');
    panel.querySelector<HTMLElement>('[data-stage="0"]')!.click();
    expect(field(panel)).toBeNull();
    panel.querySelector<HTMLElement>(`[data-stage="${first}"]`)!.click();
    named(panel, 'Edit')!.click();
    await until(() => field(panel));
    expect(field(panel)!.value).toBe('my draft');
    named(panel, 'Cancel')!.click();
    expect(field(panel)).toBeNull();
    named(panel, 'Edit')!.click();
    await until(() => field(panel));
    expect(field(panel)!.value).toBe('again');
  });
});
