/** Saves a plot as an SVG file, numbers as a CSV file, and a text under a name. The page makes the files itself. */

import { button } from '../dom';

/** What the style sheet of the card decides about a shape, and a file must contain. */
const STYLES = [
  'fill',
  'fill-opacity',
  'stroke',
  'stroke-width',
  'stroke-opacity',
  'opacity',
  'font-family',
  'font-size',
  'text-anchor',
] as const;

/** Saves a text as a file. */
export function download(name: string, type: string, text: string): void {
  downloadBlob(name, new Blob([text], { type }));
}

/** Saves bytes as a file. */
export function downloadBlob(name: string, blob: Blob): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Returns a plot as the text of an SVG file, with the styles that it has on the page, on the background of the page. */
export function svgText(plot: SVGSVGElement): string {
  const copy = plot.cloneNode(true) as SVGSVGElement;
  const originals = [plot, ...plot.querySelectorAll('*')];
  const hits = [...copy.querySelectorAll('.bnb-mark-hit')];
  [copy, ...copy.querySelectorAll('*')].forEach((element, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value) {
        element.setAttribute(name, value);
      }
    }
    for (const name of ['tabindex', 'class', 'role', 'aria-hidden']) {
      element.removeAttribute(name);
    }
  });
  hits.forEach((hit) => hit.remove());
  const { width, height } = plot.viewBox.baseVal ?? { width: 720, height: 400 };
  copy.setAttribute('width', String(width));
  copy.setAttribute('height', String(height));
  const card = plot.closest('.bnb-card');
  const paper = card && getComputedStyle(card).backgroundColor;
  const back = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  back.setAttribute('width', '100%');
  back.setAttribute('height', '100%');
  back.setAttribute('fill', paper || 'white');
  copy.prepend(back);
  return new XMLSerializer().serializeToString(copy);
}

/** Returns rows as the text of a CSV file (RFC 4180), the first row being the head. null is an empty cell. */
export function csvText(
  rows: readonly (readonly (string | number | boolean | null | undefined)[])[],
): string {
  const cell = (value: string | number | boolean | null | undefined): string => {
    const text = value === null || value === undefined ? '' : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(',') + '\r\n').join('');
}

/** Creates the buttons that save a plot and its numbers. `plot` returns null where nothing is drawn. */
export function saveButtons(
  name: string,
  plot: () => SVGSVGElement | null,
  rows: () => Parameters<typeof csvText>[0],
): HTMLElement[] {
  const file = name.replace(/[^\w.-]+/g, '_');
  return [
    button(
      'Save SVG',
      () => {
        const found = plot();
        if (found) {
          download(`${file}.svg`, 'image/svg+xml', svgText(found));
        }
      },
      { title: 'Save the plot as an SVG file' },
    ),
    button('Save CSV', () => download(`${file}.csv`, 'text/csv', csvText(rows())), {
      title: 'Save the numbers as a CSV file',
    }),
  ];
}
