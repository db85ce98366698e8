// @vitest-environment node
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

import { announce, HELLO_TARGET, VERSION } from '../src/core/hello';

const manifest = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));

test('the announced version is the version of the package', () => {
  expect(VERSION).toBe(manifest.version);
  expect(announce().version).toBe(manifest.version);
});

test('the kernel and the page use the same comm target and the same extension name', () => {
  const kernelSide = readFileSync(new URL('../../blocknb/notebook/extension.py', import.meta.url), 'utf8');
  expect(kernelSide).toContain(`HELLO_TARGET = "${HELLO_TARGET}"`);
  expect(announce().extension).toBe(manifest.name);
});
