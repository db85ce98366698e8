/** Helpers that create DOM elements. They set every string as text and never as markup. */

type Child = Node | string | null | undefined;
type Attributes = Record<string, string | number | boolean | null | undefined>;

/** Creates an element with classes, attributes and children: `h('span.bnb-note', { title }, 'text')`. Skips false and null attributes. */
export function h<K extends keyof HTMLElementTagNameMap>(
  selector: K | `${K}.${string}`,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const [tag, ...classes] = selector.split('.') as [K, ...string[]];
  const element = document.createElement(tag);
  if (classes.length) {
    element.className = classes.join(' ');
  }
  setAttributes(element, attributes);
  element.append(...children.filter((c): c is Node | string => c !== null && c !== undefined));
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

/** Creates an SVG element with attributes and children. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  element.append(...children.filter((c): c is Node | string => c !== null && c !== undefined));
  return element;
}

function setAttributes(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? '' : String(value));
    }
  }
}

let counter = 0;

/** Returns an id that is unique in the page, for ARIA relations. */
export function uniqueId(prefix: string): string {
  counter += 1;
  return `bnb-${prefix}-${counter}`;
}

/** Creates a button with a visible label and a click handler. */
export function button(label: string, onClick: () => void, attributes: Attributes = {}): HTMLButtonElement {
  const element = h('button.bnb-button', { type: 'button', ...attributes }, label);
  element.addEventListener('click', onClick);
  return element;
}

/** Returns a name in pieces, so that a line may break after an underscore, and not inside of a word. */
export function breakable(name: string): Node[] {
  return name
    .split(/(?<=_)/)
    .flatMap((piece, i) => [...(i ? [h('wbr')] : []), document.createTextNode(piece)]);
}

/** Renders text between backquotes as code. Returns the text unchanged if a backquote is unmatched. */
export function renderBackquotes(text: string): (string | Node)[] {
  const parts = text.split('`');
  return parts.length % 2 ? parts.map((part, i) => (i % 2 ? h('code', {}, part) : part)) : [text];
}
