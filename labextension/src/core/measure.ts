/**
 * The controls of an empty view: a button that measures what the view shows, with the fields that the measurement needs. They need a live
 * kernel, which answers with the document that contains the results.
 */

import { button, h, uniqueId } from './dom';
import type { Document } from './schema';
import type { Store } from './store';

/** The fields of a measurement, and the content of its request. */
export interface MeasureFields {
  elements: readonly HTMLElement[];
  content(): Record<string, unknown>;
}

/** Creates the controls that measure a view. `what` is the tooltip of the button, `name` its text. */
export function measureControls(
  store: Store,
  view: string,
  what: string,
  fields: MeasureFields = { elements: [], content: () => ({}) },
  name = 'Measure',
): HTMLElement {
  const live = store.host.request !== undefined;
  const status = h('span.bnb-quiet', { role: 'status' });
  const cancel = button('Cancel', () => store.host.cancel?.(), {
    title: 'Interrupt the kernel, and keep what was measured so far',
    hidden: true,
  });
  const element = h('div.bnb-measure');
  const run = async (): Promise<void> => {
    const setBusy = (busy: boolean): void => {
      element.setAttribute('aria-busy', String(busy));
      start.disabled = busy;
      cancel.hidden = !busy || !store.host.cancel;
    };
    setBusy(true);
    status.className = 'bnb-quiet';
    status.textContent = 'Measuring…';
    try {
      const content = { view, ...fields.content() };
      const answer = (await store.host.request?.('measure', content)) as {
        document: Document;
        saved?: Document;
      };
      setBusy(false);
      store.update(answer.document);
      store.host.save?.(answer.saved ?? answer.document);
    } catch (error) {
      setBusy(false);
      status.className = 'bnb-wrong';
      status.textContent = `✗ ${(error as Error).message}`;
    }
  };
  const start = button(name, () => store.run(run()), {
    disabled: !live,
    title: live ? what : 'Measuring needs a live kernel. Run the cell again.',
  });
  element.append(...fields.elements, start, cancel, status);
  return element;
}

/** Creates a text field with a label. */
export function textField(
  label: string,
  value: string,
  tooltip: string,
  placeholder = '',
): [HTMLElement, HTMLInputElement] {
  const input = h('input.bnb-filter.bnb-wide', {
    id: uniqueId('field'),
    value,
    title: tooltip,
    placeholder,
    spellcheck: 'false',
  });
  return [h('label', { for: input.id }, `${label} `, input), input];
}
