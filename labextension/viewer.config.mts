import { resolve } from 'node:path';

import { defineConfig } from 'vite';

// The viewer of exported pages: core and everything it needs in one file, which Python puts into the page.
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
