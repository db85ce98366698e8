/** Panels beside the notebook: closing a panel disposes it, and its view can be docked again. */

import { expect, test, vi } from 'vitest';

vi.stubGlobal('DragEvent', class extends Event {}); // jsdom has none, and Lumino's modules name it
const { Widget } = await import('@lumino/widgets');
const { Docks } = await import('../src/lab/dock');

function place() {
  const shell = new Map<string, InstanceType<typeof Widget>>();
  const app = {
    shell: {
      add: (widget: InstanceType<typeof Widget>) => void shell.set(widget.id, widget),
      activateById: vi.fn(),
    },
  };
  const panel = Object.assign(new Widget(), { context: { path: 'a.ipynb' } });
  const docked: { dispose: ReturnType<typeof vi.fn> }[] = [];
  const card = {
    dock: () => {
      const made = { view: null, dispose: vi.fn() };
      docked.push(made);
      return made;
    },
  };
  const docks = new Docks(app as never, null);
  const add = (): void =>
    docks.add({ panel, cell: 'c', kernel: 'k' } as never, card as never, 'code', 'Code');
  return { app, shell, panel, docked, add };
}

test('a closed panel ends its view, and Dock opens a new one', () => {
  const { app, shell, docked, add } = place();
  add();
  add();
  expect([shell.size, docked.length]).toEqual([1, 1]); // the second time activates the first
  [...shell.values()][0].close();
  expect(docked[0].dispose).toHaveBeenCalledTimes(1);
  add();
  expect([shell.size, docked.length]).toEqual([2, 2]);
  expect(app.shell.activateById).toHaveBeenLastCalledWith([...shell.keys()][1]);
});

test('a panel closes with its notebook, once', () => {
  const { shell, panel, docked, add } = place();
  add();
  const [dock] = shell.values();
  panel.dispose();
  expect(dock.isDisposed).toBe(true);
  dock.dispose();
  expect(docked[0].dispose).toHaveBeenCalledTimes(1);
});
