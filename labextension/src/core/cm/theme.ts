/** The theme of listings. It uses CSS variables only, so it follows JupyterLab's theme, or the theme of an exported page. */

import { HighlightStyle, syntaxHighlighting } from '@codemirror/language';
import type { Extension } from '@codemirror/state';
import { EditorView } from '@codemirror/view';
import { tags as t } from '@lezer/highlight';

const chrome = EditorView.theme({
  '&': {
    backgroundColor: 'transparent',
    color: 'var(--bnb-text)',
    fontSize: 'var(--bnb-code-size)',
    maxHeight: '32em',
  },
  '&.cm-focused': { outline: '2px solid var(--bnb-focus)', outlineOffset: '-2px' },
  '.cm-scroller': { fontFamily: 'var(--bnb-code-font)', lineHeight: '1.45', overflow: 'auto' },
  '.cm-gutters': { backgroundColor: 'var(--bnb-page)', color: 'var(--bnb-faint)', border: 'none' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'var(--bnb-active)' },
  '.cm-cursor': { borderLeftColor: 'var(--bnb-text)' },
  '.cm-selectionBackground, &.cm-focused .cm-selectionBackground': {
    backgroundColor: 'var(--bnb-selected) !important',
  },
  '.bnb-highlight': {
    backgroundColor: 'var(--bnb-highlight)',
    boxShadow: 'inset 3px 0 var(--bnb-highlight-edge)',
  },
  '.bnb-highlight-op': {
    backgroundColor: 'var(--bnb-highlight-op)',
    boxShadow: 'inset 6px 0 var(--bnb-highlight-edge)',
  },
  '.cm-panels': { backgroundColor: 'var(--bnb-raised)', color: 'var(--bnb-text)' },
  '.cm-tooltip': {
    backgroundColor: 'var(--bnb-raised)',
    color: 'var(--bnb-text)',
    border: '1px solid var(--bnb-border)',
  },
});

const colours = HighlightStyle.define([
  { tag: t.comment, color: 'var(--bnb-comment)', fontStyle: 'italic' },
  { tag: t.keyword, color: 'var(--bnb-keyword)', fontWeight: '600' },
  { tag: t.operatorKeyword, color: 'var(--bnb-operation)' },
  { tag: t.typeName, color: 'var(--bnb-type)' },
  { tag: t.variableName, color: 'var(--bnb-text)' },
  { tag: t.labelName, color: 'var(--bnb-label)' },
  { tag: t.atom, color: 'var(--bnb-label)' },
  { tag: t.number, color: 'var(--bnb-number)' },
  { tag: t.string, color: 'var(--bnb-string)' },
]);

export const theme: Extension = [chrome, syntaxHighlighting(colours)];
