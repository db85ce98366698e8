/** The field that finds the first pass which adds or removes a text. */

import { button, h } from '../dom';
import type { Stage } from '../schema';
import type { Store } from '../store';

/** Creates the field. `choose` gets the index of the stage that was found. */
export function passFinder(
  store: Store,
  stages: () => readonly Stage[],
  choose: (at: number) => void,
): HTMLElement {
  const text = h('input.bnb-filter', {
    type: 'search',
    placeholder: 'text in the IR',
    'aria-label': 'Text to find in the IR',
    title: 'A text such as an op or a layout',
  });
  const effect = h(
    'select.bnb-select',
    { 'aria-label': 'Effect of the pass on the text', title: 'Whether the pass adds or removes the text' },
    h('option', { value: 'adds' }, 'adds'),
    h('option', { value: 'removes' }, 'removes'),
  );
  const answer = h('span.bnb-quiet', { role: 'status' });

  async function find(): Promise<void> {
    const wanted = text.value;
    const adds = effect.value === 'adds';
    if (!wanted) {
      return;
    }
    const list = stages();
    const texts = await Promise.all(list.map((stage) => store.listing(stage.text)));
    const has = texts.map((listing) => listing?.text.includes(wanted) ?? false);
    const at = has.findIndex((found, i) => (adds ? found && !has[i - 1] : !found && i > 0 && has[i - 1]));
    if (at < 0) {
      answer.textContent = `No pass ${adds ? 'adds' : 'removes'} “${wanted}”.`;
      return;
    }
    const does = at === 0 ? 'The initial IR contains it' : `${list[at].name} ${adds ? 'adds' : 'removes'} it`;
    answer.textContent = `${does}.`;
    choose(at);
  }

  const run = (): void => store.run(find());
  text.addEventListener('keydown', (event) => event.key === 'Enter' && run());
  return h(
    'div.bnb-tools.bnb-finder',
    {},
    h('label', {}, 'first pass that ', effect),
    text,
    button('Find', run, { title: 'Select the first pass that adds or removes this text' }),
    answer,
  );
}
