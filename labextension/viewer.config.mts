import { resolve } from 'node:path';

import { defineConfig } from 'vite';

// Bundles the viewer of exported pages, the core with its dependencies, into one file. Python embeds this file in the page.
export default defineConfig({
  root: import.meta.dirname,
  publicDir: false,
  logLevel: 'warn',
  build: {
    outDir: resolve(import.meta.dirname, 'dist/viewer'),
    emptyOutDir: true,
    cssCodeSplit: false,
    lib: {
      entry: resolve(import.meta.dirname, 'src/standalone.ts'),
      formats: ['iife'],
      name: 'blocknb',
      fileName: () => 'viewer.js',
    },
  },
});
