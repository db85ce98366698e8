/** The colours of words in listings. */

import { ensureSyntaxTree } from '@codemirror/language';
import { EditorState } from '@codemirror/state';
import { expect, test } from 'vitest';

import { language, type Language } from '../src/core/cm/languages';

/** The words of a text with the names of their tokens. */
function tokens(text: string, name: Language): Record<string, string> {
  const state = EditorState.create({ doc: text, extensions: language(name) });
  const found: Record<string, string> = {};
  ensureSyntaxTree(state, text.length)!.iterate({
    enter: (node) => {
      if (node.name !== 'Document') {
        found[text.slice(node.from, node.to)] = node.name;
      }
    },
  });
  return found;
}

test('each language has tokens of several kinds', () => {
  const ir = tokens('%0 = load %x {vec=4} : tile<64xf32, #a>  // a note', 'ir');
  expect(ir.load).toBeTruthy();
  expect(ir.load).not.toBe(ir['#a']);
  expect(ir['// a note']).toBe('comment');
  const lines: [Language, string][] = [
    ['ptx', 'ld.global.v4.b32 {%r1}, [%rd1+16];'],
    ['sass', 'LDG.E.128 R4, [R2.64+0x10]'],
    ['llvm', '%1 = load float, ptr %p, align 4'],
    ['asm', 'vmovups ymm0, ymmword ptr [rax + 32]'],
    ['python', 'def f(x): return x + 1'],
  ];
  for (const [name, line] of lines) {
    expect(new Set(Object.values(tokens(line, name))).size, name).toBeGreaterThan(1);
  }
});

test('an immediate operand of Arm is a number, and a comment of x86 a comment', () => {
  const arm = tokens('add x8, x9, #16 // 16 bytes', 'asm');
  expect(arm['x8']).toBe('variableName');
  expect(arm['16']).toBe('number');
  expect(arm['// 16 bytes']).toBe('comment');
  expect(tokens('movq %rsp, %rbp # 8-byte Spill', 'asm')['# 8-byte Spill']).toBe('comment');
});
