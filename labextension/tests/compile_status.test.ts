/** The status of a long compilation and its button, next to a notebook's kernel, to none, and to one that refuses. */

import type { INotebookTracker } from '@jupyterlab/notebook';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { expect, test, vi } from 'vitest';

import { PROGRESS_MIME, ProgressRenderer } from '../src/lab/progress';
import { PATIENT } from './fixtures';

// jsdom has no drag events, which the real module needs when it is loaded.
vi.mock('@lumino/widgets', () => ({
  Widget: class {
    node = document.createElement('div');
  },
}));

function clicked(kernel: unknown): ProgressRenderer {
  const panel = { node: document.body, sessionContext: { session: { kernel } } };
  const tracker = { find: (test: (one: unknown) => boolean) => (test(panel) ? panel : undefined) };
  const renderer = new ProgressRenderer(tracker as unknown as INotebookTracker);
  document.body.append(renderer.node);
  renderer.node.querySelector('button')!.click();
  return renderer;
}

test('shows the status as text', async () => {
  const renderer = clicked({ interrupt: () => Promise.resolve() });
  const data = { [PROGRESS_MIME]: { text: '<b>fuse</b>, 3 of 36 passes done' } };
  await renderer.renderModel({ data } as unknown as IRenderMime.IMimeModel);
  expect(renderer.node.querySelector('[role=status]')!.textContent).toBe('<b>fuse</b>, 3 of 36 passes done');
});

test('interrupts the kernel of its notebook, and says if that fails', async () => {
  const interrupt = vi.fn().mockRejectedValue(new Error('403'));
  const status = clicked({ interrupt }).node.querySelector('[role=status]')!;
  expect(interrupt).toHaveBeenCalledTimes(1);
  await vi.waitFor(() => expect(status.textContent).toBe('The interrupt failed: 403'), PATIENT);
});

test('names the menu if there is no kernel', () => {
  expect(clicked(null).node.querySelector('[role=status]')!.textContent).toContain('Interrupt Kernel');
});
