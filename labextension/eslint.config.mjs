import js from '@eslint/js';
import ts from 'typescript-eslint';

export default ts.config(
  { ignores: ['**/lib/**', '**/dist/**'] },
  js.configs.recommended,
  ...ts.configs.recommended,
  {
    files: ['**/*.ts'],
    rules: {
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_' }],
      'max-lines': ['error', 500],
    },
  },
  {
    // The core runs in JupyterLab, in exported pages and in tests, so it must not depend on Jupyter.
    files: ['**/src/core/**/*.ts'],
    rules: {
      'no-restricted-imports': [
        'error',
        {
          patterns: [
            {
              group: ['@jupyterlab/*', '@jupyter-widgets/*', '**/lab/**'],
              message: 'core/ must not import Jupyter',
            },
          ],
        },
      ],
      'no-restricted-syntax': [
        'error',
        {
          selector: 'AssignmentExpression[left.property.name=/^(innerHTML|outerHTML)$/]',
          message: 'use textContent, because notebooks are untrusted',
        },
      ],
    },
  },
);
