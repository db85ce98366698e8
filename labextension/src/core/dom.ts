/** Making elements, safely: every text is set as text, never as markup. */

type Child = Node | string | null | undefined;
type Attributes = Record<string, string | number | boolean | null | undefined>;

/** An element with a class, attributes and children: `h('span.bnb-note', { title }, 'text')`. False and null attributes are left out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  selector: K | `${K}.${string}`,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const [tag, ...classes] = selector.split('.') as [K, ...string[]];
  const made = document.createElement(tag);
  if (classes.length) {
    made.className = classes.join(' ');
  }
  set(made, attributes);
  made.append(...children.filter((c): c is Node | string => c !== null && c !== undefined));
  return made;
}

const SVG = 'http://www.w3.org/2000/svg';

/** The same for SVG. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const made = document.createElementNS(SVG, tag);
  set(made, attributes);
  made.append(...children.filter((c): c is Node | string => c !== null && c !== undefined));
  return made;
}

function set(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? '' : String(value));
    }
  }
}

let counter = 0;

/** A fresh id for ARIA relations. */
export function uniqueId(prefix: string): string {
  counter += 1;
  return `bnb-${prefix}-${counter}`;
}

/** A button that does something, with a visible label. */
export function button(label: string, onClick: () => void, attributes: Attributes = {}): HTMLButtonElement {
  const made = h('button.bnb-button', { type: 'button', ...attributes }, label);
  made.addEventListener('click', onClick);
  return made;
}
