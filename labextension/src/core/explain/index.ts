/** Explains the machine instruction on a line of PTX, SASS, or assembly of x86 or Arm. */

import { ARM } from './arm';
import { PTX, PTX_PARTS } from './ptx';
import { SASS } from './sass';
import { X86 } from './x86';

/** The explanation of an instruction. */
export interface Explanation {
  /** The opcode as the line spells it. */
  opcode: string;
  /** The position of the opcode in the line. */
  from: number;
  text: string;
}

type Explain = (line: string) => Explanation | null;

/**
 * Explains a line of PTX. A predicate may precede the opcode, and directives begin with a dot. Inline assembly has several instructions
 * per line, after its register declarations; this function explains the main one.
 */
const ptx: Explain = (line) => {
  const found = /^\s*\{ \.reg/.test(line)
    ? /^(.*?)((?:wgmma\.mma_async|mbarrier\.try_wait)[\w.:]*)/.exec(line)
    : /^(\s*(?:\{\s*)?(?:@!?%\w+\s+)?)([a-z][\w.:]*)(?=[\s;]|$)/.exec(line);
  if (!found || line.trimEnd().endsWith(':')) {
    return null;
  }
  const opcode = found[2];
  const parts = opcode.replace(/::\w+/g, '').split('.');
  for (let n = parts.length; n > 0; n--) {
    const text = PTX[parts.slice(0, n).join('.')];
    if (text) {
      const more = parts.slice(n).flatMap((part) => PTX_PARTS[part] ?? []);
      return { opcode, from: found[1].length, text: [text, ...more].join('; ') };
    }
  }
  return null;
};

/** Explains a line of SASS. An address comment and a predicate may precede the opcode. */
const sass: Explain = (line) => {
  const found = /^(\s*(?:\/\*.*?\*\/\s*)?(?:\{\s*)?(?:@!?U?P[T\d]+\s+)?)([A-Z][A-Z0-9]*(?:\.[\w.]+)?)/.exec(
    line,
  );
  const text = found && SASS[found[2].split('.')[0]];
  return found && text ? { opcode: found[2], from: found[1].length, text } : null;
};

const WIDTHS: [RegExp, string][] = [
  [/%zmm/, '16 fp32 or 8 fp64'],
  [/%ymm/, '8 fp32 or 4 fp64'],
  [/%xmm/, '128 bits'],
];

/** Explains a line of x86 assembly by the longest known prefix of its mnemonic. */
const x86: Explain = (line) => {
  const found = /^(\s+)([a-z][a-z0-9]*)(?=\s|$)/.exec(line);
  if (!found) {
    return null;
  }
  const opcode = found[2];
  const scalar = opcode.replace(/ss$/, 'ps').replace(/sd$/, 'pd');
  for (const name of [opcode, scalar]) {
    for (let n = name.length; n > 1; n--) {
      const text = X86[name.slice(0, n)];
      if (text) {
        const one = opcode.startsWith('v') && /s[sd]$/.test(opcode);
        const width = one ? 'scalar' : WIDTHS.find(([pattern]) => pattern.test(line))?.[1];
        const more = opcode.startsWith('v') && width ? ` (${width})` : '';
        return { opcode, from: found[1].length, text: text + more };
      }
    }
  }
  return null;
};

const LANES: Readonly<Record<string, string>> = { b: '8 bits', h: '16 bits', s: '32 bits', d: '64 bits' };

/** Explains a line of Arm assembly. The arrangement of a vector gives the number and size of its elements. */
const arm: Explain = (line) => {
  const found = /^(\s+)([a-z][a-z0-9]*)(?:\.[a-z]{2})?(?=\s|$)/.exec(line);
  const text = found && ARM[found[2]];
  if (!text) {
    return null;
  }
  const vector = /\bv\d+\.(\d+)([bhsd])\b/.exec(line);
  const more = vector ? ` (${vector[1]} elements of ${LANES[vector[2]]})` : '';
  return { opcode: found[2], from: found[1].length, text: text + more };
};

/** Explains a line of assembly. Only x86 marks registers by a percent sign; lines of x86 without registers are jumps. */
const asm: Explain = (line) => (line.includes('%') ? null : arm(line)) ?? x86(line);

const LANGUAGES: Readonly<Record<string, Explain>> = { ptx, sass, asm };

/** Explains the instruction on a line. Returns null if there is none, or if it is unknown. */
export function explain(language: string, line: string): Explanation | null {
  return LANGUAGES[language]?.(line) ?? null;
}
