/** The styles for high-contrast modes, in which shadows are gone and backgrounds are the system's. */

import { readdirSync, readFileSync } from 'node:fs';

import { expect, test } from 'vitest';

const ROOT = `${import.meta.dirname}/..`;
const FORCED = readFileSync(`${ROOT}/style/forced_colours.css`, 'utf8').replace(/\/\*.*?\*\//gs, '');

/** The text of all files of a folder. */
function texts(folder: string): string {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  const wanted = files.filter((name) => /\.(ts|css)$/.test(name) && !name.endsWith('forced_colours.css'));
  return wanted.map((name) => readFileSync(`${folder}/${name}`, 'utf8')).join('\n');
}

/** The selectors of a style sheet whose rules have a property. */
function having(css: string, property: RegExp): string[] {
  const rules = [...css.replace(/\/\*.*?\*\//gs, '').matchAll(/([^{}]+)\{([^{}]*)\}/g)];
  return rules
    .filter(([, , body]) => property.test(body))
    .flatMap(([, head]) => head.split(',').map((one) => one.trim()));
}

test('the card imports them last, so that they win', () => {
  const imports = [...readFileSync(`${ROOT}/style/index.css`, 'utf8').matchAll(/@import url\('(.+?)'\)/g)];
  expect(imports.pop()![1]).toBe('./forced_colours.css');
});

test('each class that they name is one of the card', () => {
  const known = texts(`${ROOT}/src`) + texts(`${ROOT}/style`);
  const named = new Set([...FORCED.matchAll(/\.(bnb-[\w-]+)/g)].map(([, name]) => name));
  expect(named.size).toBeGreaterThan(20);
  expect([...named].filter((name) => !known.includes(name))).toEqual([]);
});

test('what only a shadow marks has an outline, or keeps its colours', () => {
  const marks = having(texts(`${ROOT}/style`), /box-shadow: inset/);
  const theme = readFileSync(`${ROOT}/src/core/cm/theme.ts`, 'utf8');
  marks.push(...[...theme.matchAll(/'(\.bnb-[\w-]+)': \{[^}]*boxShadow: 'inset/g)].map(([, name]) => name));
  expect(marks.length).toBeGreaterThan(5);
  const kept = having(FORCED, /outline: |forced-color-adjust: none/).join(' ');
  const last = (selector: string): string => selector.match(/\.bnb-[\w-]+(?!.*\.bnb-)/)![0];
  expect(marks.filter((selector) => !kept.includes(last(selector)))).toEqual([]);
});
