/** The colours of pictures and of lines: sets of hues, or steps from dark to light that any colour vision tells apart. The user chooses. */

import { h } from './dom';
import type { Store } from './store';

/** A set of colours. Its CSS variables stand in style/palettes.css. */
export type Palette = 'hues' | 'cividis' | 'grey';

const PALETTES: readonly [Palette, string][] = [
  ['hues', 'hues (Okabe-Ito)'],
  ['cividis', 'blue to yellow (cividis)'],
  ['grey', 'grey'],
];

/** The colours of programs, in turn. */
const PROGRAMS: Readonly<Record<Palette, readonly string[]>> = {
  hues: ['#8fc1e3', '#f2c77e', '#8fd3b6', '#d9b3d0', '#f4e58c', '#b4b8e8', '#e8b49a', '#c3d98b'],
  cividis: ['#8a93b0', '#fee838', '#a59c74', '#d0d3de', '#c3b369', '#707fa8', '#e1cc55', '#b4b4a8'],
  grey: ['#909090', '#f0f0f0', '#b0b0b0', '#d8d8d8', '#a0a0a0', '#e6e6e6', '#989898', '#c4c4c4'],
};

/** Returns the colour of a program, which differs from that of its neighbours along each axis of the grid. */
export function programColour(program: number, grid: readonly number[], palette: Palette): string {
  const [x, y] = grid;
  const at = (program % x) + 3 * (Math.floor(program / x) % y) + 5 * Math.floor(program / (x * y));
  const colours = PROGRAMS[palette];
  return colours[at % colours.length];
}

/** Calls `draw` when the palette or the theme of the page changes, because a canvas keeps its pixels. Returns a function that ends it. */
export function onLook(store: Store, draw: () => void): () => void {
  const later = (): void => void requestAnimationFrame(draw); // after the new style applies
  const stop = store.subscribe((change) => change === 'display' && later());
  const observer = new MutationObserver(later);
  observer.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name', 'class'] });
  return () => {
    stop();
    observer.disconnect();
  };
}

const KEY = 'blocknb:palette';

/** The palette that the user chose last in this browser. */
export function lastPalette(): Palette {
  try {
    const found = localStorage.getItem(KEY);
    return PALETTES.find(([name]) => name === found)?.[0] ?? 'hues';
  } catch {
    return 'hues'; // a page without storage, such as a file in a sandbox
  }
}

/** The choice of the palette. It applies to the card, and to the cards that open later. */
export function paletteChoice(root: HTMLElement, store: Store): HTMLElement {
  const choice = h(
    'select.bnb-select',
    { 'aria-label': 'Colours', title: 'The colours of pictures and of lines' },
    ...PALETTES.map(([name, title]) => h('option', { value: name }, title)),
  );
  const paint = (): void => {
    root.dataset.palette = choice.value = store.display.palette;
  };
  choice.addEventListener('change', () => {
    const palette = choice.value as Palette;
    try {
      localStorage.setItem(KEY, palette);
    } catch {
      // without storage the choice ends with the page
    }
    root.dataset.palette = palette;
    store.setDisplay({ ...store.display, palette });
  });
  paint();
  return h('label.bnb-palette', {}, 'colours ', choice);
}
