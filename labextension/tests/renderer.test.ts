/** The renderer of cards: what it does when an output that it shows gets another document. */

import { afterAll, beforeEach, expect, test, vi } from 'vitest';

import type { Host } from '../src/core/host';
import type { Document } from '../src/core/schema';
import { MIME } from '../src/core/schema';
import { fixture, until } from './fixtures';

vi.stubGlobal('DragEvent', class extends Event {}); // jsdom has none, and Lumino's modules name it
vi.doMock('@jupyterlab/codemirror', () => ({
  CodeMirrorEditor: class {},
  EditorExtensionRegistry: class {},
}));
const hosts: Host[] = [];
const mounts: Document[] = [];
const core = await import('../src/core/mount');
vi.doMock('../src/core/mount', () => ({
  ...core,
  mount: (element: HTMLElement, doc: Document, host: Host) => {
    mounts.push(doc);
    hosts.push(host);
    const card = core.mount(element, doc, host);
    return Object.assign(Object.create(card) as typeof card, {
      connect: (next: Host) => {
        hosts.push(next);
        card.connect(next);
      },
    });
  },
}));
const { CardRenderer } = await import('../src/lab/renderer');
afterAll(() => {
  vi.doUnmock('../src/core/mount');
  vi.doUnmock('@jupyterlab/codemirror');
});
beforeEach(() => void (hosts.length = mounts.length = 0));

/** A kernel that knows the cards of some models. `asked` lists what each card was asked, `closed` the comms that the page closed. */
function kernel(known: string[], wait = Promise.resolve()) {
  const asked: [string, unknown][] = [];
  const closed: string[] = [];
  const signal = { connect: () => true, disconnect: () => true };
  const createComm = () => {
    const comm = {
      card: '',
      isDisposed: false,
      onMsg: (_: unknown): void => {},
      onClose: (): void => {},
      open({ card }: { card: string }) {
        comm.card = card;
        void wait.then(() => (known.includes(card) ? comm.onMsg({}) : comm.onClose()));
        return { done: Promise.resolve() };
      },
      send: ({ what }: { what: unknown }) => void asked.push([comm.card, what]),
      close: () => {
        closed.push(comm.card);
        comm.isDisposed = true;
        comm.onClose();
      },
      dispose: () => {},
    };
    return comm;
  };
  const made = {
    handleComms: true,
    isDisposed: false,
    status: 'idle',
    statusChanged: signal,
    disposed: signal,
  };
  return { asked, closed, kernel: { ...made, createComm } };
}

/** A renderer in a notebook. `show` renders a document as the output. */
function output(running: ReturnType<typeof kernel>) {
  const panel = {
    node: document.body,
    content: { widgets: [], model: null },
    context: { path: 'a.ipynb' },
    isDisposed: false,
    sessionContext: { session: { kernel: running.kernel } },
  };
  const createRenderer = () => {
    const node = document.createElement('pre');
    return { node, renderModel: () => Promise.resolve() };
  };
  const app = {
    tracker: { find: (one: (found: unknown) => boolean) => (one(panel) ? panel : undefined) },
    rendermime: { createRenderer },
    docks: { attach: vi.fn(), detach: vi.fn(), add: vi.fn() },
  };
  const renderer = new CardRenderer(app as never);
  document.body.replaceChildren(renderer.node);
  const show = (doc: unknown) => {
    const data = { [MIME]: structuredClone(doc), 'text/plain': 'static' };
    return renderer.renderModel({ data, metadata: {}, trusted: true, setData: vi.fn() } as never);
  };
  return { renderer, show };
}

const document_ = (model: string | null, more: Partial<Document> = {}): Document => ({
  ...fixture('scale'),
  model,
  ...more,
});

const last = (): Host => hosts[hosts.length - 1];

test('a second document of the same output asks its own card of the kernel', async () => {
  const running = kernel(['first', 'second']);
  const { show } = output(running);
  await show(document_('first'));
  await until(() => last().state === 'live');
  await show(document_('second'));
  expect(running.closed).toEqual(['first']);
  await until(() => last().state === 'live' && hosts.length > 3);
  void last().request?.('turn', {});
  expect(running.asked).toEqual([['second', 'turn']]);
  expect(mounts.length).toBe(1); // the same kernel: the choices in the card stay
});

test('a document that the kernel does not know is not connected to the card before it', async () => {
  const running = kernel(['first']);
  const { show } = output(running);
  await show(document_('first'));
  await until(() => last().state === 'live');
  await show(document_(null));
  expect(last().state).toBe('saved');
  expect(last().request).toBeUndefined();
});

test('a document that comes while its predecessor connects is connected instead', async () => {
  let release = (): void => {};
  const running = kernel(['first', 'second'], new Promise<void>((resolve) => (release = resolve)));
  const { show } = output(running);
  await show(document_('first'));
  await show(document_('second'));
  release();
  await until(() => last().state === 'live');
  void last().request?.('turn', {});
  expect(running.asked).toEqual([['second', 'turn']]);
  expect(running.closed).toEqual(['first']);
});

test('a document of another kernel gets a card of its own', async () => {
  const { renderer, show } = output(kernel([]));
  await show(document_(null));
  await show(document_(null, { kernel: 'another' }));
  expect(mounts.map((doc) => doc.kernel)).toEqual([fixture('scale').kernel, 'another']);
  expect(renderer.node.querySelectorAll('.bnb-card').length).toBe(1);
  expect(renderer.node.querySelector('.bnb-card')!.getAttribute('aria-label')).toBe('blocknb: another');
});

test('a document after one that cannot be read is shown', async () => {
  const { renderer, show } = output(kernel([]));
  await show(document_(null));
  await show({ schema: 1e6 });
  expect(renderer.node.querySelectorAll('.bnb-card').length).toBe(0);
  await show(document_(null));
  expect(renderer.node.querySelectorAll('.bnb-card').length).toBe(1);
});

test('a document that comes while its predecessor is rendered stays', async () => {
  const { renderer, show } = output(kernel([]));
  const widget = { model: 'w', root: { box: 'vertical', children: [] }, documents: [] };
  for (const slow of [{ schema: 1e6 }, document_(null, { widget } as never)]) {
    const before = show(slow);
    await show(document_(null));
    await before;
    expect(renderer.node.querySelectorAll('.bnb-card').length).toBe(1);
    expect(renderer.node.children.length).toBe(1);
  }
});

test('a page that removes a card closes its comm, and does not call that a lost kernel', async () => {
  const running = kernel(['first']);
  const { renderer, show } = output(running);
  await show(document_('first'));
  await until(() => last().state === 'live');
  const before = hosts.length;
  renderer.dispose();
  expect(running.closed).toEqual(['first']);
  expect(hosts.length).toBe(before);
});
