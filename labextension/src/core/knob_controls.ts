/** The controls of the knobs: a slider for each constant and option, and a switch for each optional pass. */

import { button, h, uniqueId } from './dom';
import type { KnobSession } from './knob_session';
import type { Knob, KnobSettings } from './schema';
import type { Store } from './store';

const OPTIONS = ['num_warps', 'num_stages'] as const;
const OPTION_TOOLTIPS: Record<string, string> = {
  num_warps: 'Warps per CTA: compiles and measures the kernel again',
  num_stages: 'Stages of a software pipeline: compiles and measures the kernel again',
};

/** Mounted controls. */
export interface KnobControls {
  element: HTMLElement;
  dispose(): void;
}

/** Creates sliders and, if asked for, the switches of passes. They follow the session. */
export function knobControls(store: Store, session: KnobSession, switches: boolean): KnobControls {
  const element = h('div.bnb-knobs');
  /** Functions that show the settings on the controls. */
  let showers: (() => void)[] = [];
  let live: boolean | null = null;
  const cancel = button('Cancel', () => session.cancel(), {
    title: 'Interrupt the compilation or the measurement',
  });

  function build(): void {
    live = session.live;
    showers = [];
    const found = store.doc.knobs!;
    const rows = found.constants.map((knob) =>
      slider(
        knob,
        (settings, value) => (settings.constants[knob.name] = value),
        () => session.settings.constants[knob.name],
      ),
    );
    for (const name of OPTIONS) {
      rows.push(
        slider(
          { name, ...found[name] },
          (settings, value) => (settings[name] = Number(value)),
          () => session.settings[name] ?? store.doc.knobs![name].value, // the compiler's choice
        ),
      );
    }
    const reset = button('Reset to the cell’s values', () => session.reset(), {
      disabled: !live,
      title: 'Show the card of the run cell again',
    });
    element.replaceChildren(...rows, ...(switches ? [passes()] : []), h('div', {}, reset, ' ', cancel));
  }

  function slider(
    knob: Knob,
    set: (settings: KnobSettings, value: number | boolean) => void,
    get: () => number | boolean,
  ): HTMLElement {
    const value = h('output.bnb-value', {}, String(knob.value));
    const input = h('input', {
      type: 'range',
      min: 0,
      max: knob.choices.length - 1,
      step: 1,
      disabled: !live,
      id: uniqueId('knob'),
      'data-knob': knob.name,
      title:
        OPTION_TOOLTIPS[knob.name] ?? `The constant ${knob.name}: compiles and measures the kernel again`,
    });
    const show = (): void => {
      const chosen = get() ?? knob.value;
      input.value = String(Math.max(0, knob.choices.indexOf(chosen)));
      value.textContent = String(chosen);
      input.setAttribute('aria-valuetext', String(chosen));
    };
    show();
    showers.push(show);
    input.addEventListener('input', () => {
      const chosen = knob.choices[Number(input.value)];
      session.change((settings) => set(settings, chosen));
    });
    return h('div.bnb-knob', {}, h('label', { for: input.id }, knob.name), input, value);
  }

  /** Returns the title of a pass, which an excluded pass does not have. */
  function title(pass: string): string {
    const stages = store.doc.views.flatMap((view) => view.stages ?? []);
    return stages.find(({ name }) => name === pass)?.title ?? `Compile with or without ${pass}`;
  }

  function passes(): HTMLElement {
    const found = h('fieldset.bnb-switches', {}, h('legend', {}, 'optional passes'));
    for (const { name } of store.doc.knobs!.passes) {
      const box = h('input', { type: 'checkbox', disabled: !live, id: uniqueId('pass') });
      const show = (): void => void (box.checked = !session.settings.without.includes(name));
      show();
      showers.push(show);
      box.addEventListener('change', () => {
        const { checked } = box;
        session.change((settings) => {
          const others = settings.without.filter((other) => other !== name);
          settings.without = checked ? others : [...others, name].sort();
        });
      });
      found.append(h('label.bnb-switch', { for: box.id, title: title(name) }, box, ` ${name}`));
    }
    return found;
  }

  const showCancel = (): void => void (cancel.hidden = !session.running || !store.host.cancel);
  build();
  showCancel();
  const stop = session.onChange(() => {
    if (live !== session.live) {
      build();
    }
    showCancel();
    showers.forEach((show) => show());
  });
  return { element, dispose: stop };
}
