/** Short explanations of machine instructions: which opcode stands on a line, and what it does. */

import { PTX, PTX_PARTS } from './ptx';
import { SASS } from './sass';
import { X86 } from './x86';

export interface Explanation {
  /** The opcode as it stands on the line, and where. */
  opcode: string;
  from: number;
  text: string;
}

type Explain = (line: string) => Explanation | null;

/** A line of PTX: a predicate may stand before the opcode; names of directives begin with a dot. Of several instructions on a line, as
 * inline assembly has them behind its own registers, it is the first one of a name that does the work. */
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

/** A line of SASS: an address comment and a predicate may stand before the opcode. */
const sass: Explain = (line) => {
  const found = /^(\s*(?:\/\*.*?\*\/\s*)?(?:\{\s*)?(?:@!?U?P[T\d]+\s+)?)([A-Z][A-Z0-9]*(?:\.[\w.]+)?)/.exec(
    line,
  );
  const text = found && SASS[found[2].split('.')[0]];
  return found && text ? { opcode: found[2], from: found[1].length, text } : null;
};

const WIDTHS: [RegExp, string][] = [
  [/%zmm/, '16 fp32 or 8 fp64 at once'],
  [/%ymm/, '8 fp32 or 4 fp64 at once'],
  [/%xmm/, '128 bits'],
];

/** A line of x86 assembly: the longest name that the mnemonic begins with. */
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
        const width = one ? 'one number' : WIDTHS.find(([pattern]) => pattern.test(line))?.[1];
        const more = opcode.startsWith('v') && width ? ` (${width})` : '';
        return { opcode, from: found[1].length, text: text + more };
      }
    }
  }
  return null;
};

const LANGUAGES: Readonly<Record<string, Explain>> = { ptx, sass, asm: x86 };

/** What the instruction on a line does; null where there is none, or none that is known. */
export function explain(language: string, line: string): Explanation | null {
  return LANGUAGES[language]?.(line) ?? null;
}
