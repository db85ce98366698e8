/** Explains words of the IR: ops, attributes and types from one table (`scripts/ir_help.py` writes it), and layouts in words. */

import table from './ir.json';

/** The explanation of a word, and its place in the line. */
export interface IrExplanation {
  word: string;
  from: number;
  text: string;
  /** The layout that the word names, as the IR prints it. */
  layout?: string;
}

const OPS: Record<string, { text: string; operands: string; ir: string }> = table.ops;
const WORDS = /#\w+\b|"(?:\\.|[^"\\])*"|[A-Za-z_]\w*/g;

/** Explains the word at a position of a line of IR. `layouts` are the lines of the table of layouts. */
export function explainIr(line: string, position: number, layouts: readonly string[]): IrExplanation | null {
  const code = line.replace(/\/\/.*$/, (comment) => ' '.repeat(comment.length));
  for (const found of code.matchAll(WORDS)) {
    const [word] = found;
    const from = found.index;
    if (position < from || position > from + word.length || /[%@.\w]/.test(code[from - 1] ?? '')) {
      continue;
    }
    if (word.startsWith('#')) {
      const layout = layouts.find((row) => row.startsWith(`${word} = `))?.slice(word.length + 3);
      return layout ? { word, from, text: layoutInWords(layout), layout } : null;
    }
    const text = meaning(word, code.slice(from + word.length), code.startsWith('func '));
    return text ? { word, from, text } : null;
  }
  return null;
}

function meaning(word: string, rest: string, isFunction: boolean): string {
  const own = (words: Record<string, string>): string =>
    Object.prototype.hasOwnProperty.call(words, word) ? words[word] : '';
  if (/^=/.test(rest)) {
    return (isFunction && own(table.function)) || own(table.attributes);
  }
  if (/^</.test(rest)) {
    return own(table.types);
  }
  const op = Object.prototype.hasOwnProperty.call(OPS, word) ? OPS[word] : null;
  if (op) {
    const operands = op.operands ? ` Operands: ${op.operands}.` : '';
    return `${op.text}${operands}${op.ir ? ` ${op.ir}` : ''}`;
  }
  return own(table.types);
}

/** A layout as numbers: the element that each bit of register, lane and warp contributes (see blocknb/layouts/linear.py). */
export interface LayoutBits {
  shape: number[];
  reg: number[];
  lane: number[];
  warp: number[];
}

/** Reads the text of a layout of registers. Null for another text, such as a layout of shared memory. */
export function parseLayout(text: string): LayoutBits | null {
  const found = /^<([\dx]+): reg ([-\d,]+) lane ([-\d,]+) warp ([-\d,]+)>$/.exec(text);
  if (!found) {
    return null;
  }
  const bits = (part: string): number[] => (part === '-' ? [] : part.split(',').map(Number));
  const shape = found[1].split('x').map(Number);
  return shape.reduce((a, b) => a * b, 1) <= 1 << 22
    ? { shape, reg: bits(found[2]), lane: bits(found[3]), warp: bits(found[4]) }
    : null;
}

/** Describes a layout: what a thread holds, how lanes and warps divide the tile, and which threads hold the same elements. */
export function layoutInWords(text: string): string {
  const layout = parseLayout(text);
  if (!layout) {
    const shape = /^<([\dx]+): shared/.exec(text)?.[1];
    return shape ? `The order of the elements of a ${shape} tile in shared memory: ${text}` : text;
  }
  const { shape, reg, lane, warp } = layout;
  const distinct = (bits: number[]): number => 1 << bits.filter((bit) => bit > 0).length;
  const per = distinct(reg);
  const row = run(reg);
  const parts = [
    `Each thread holds ${count(per, 'element')}${row > 1 ? `, ${row} of them successive` : ''}.`,
    `The lanes of a warp hold ${extent(shape, lane, reg)}.`,
  ];
  const warps = 1 << warp.length;
  parts.push(
    distinct(warp) === warps
      ? `${count(warps, 'warp')} ${warps > 1 ? 'divide' : 'holds'} the tile.`
      : `${warps} warps: ${distinct(warp)} divide the tile, and ${warps / distinct(warp)} hold the same elements.`,
  );
  const copies = (1 << lane.length) / distinct(lane);
  if (copies > 1) {
    parts.push(`${copies} lanes hold the same elements.`);
  }
  return parts.join(' ');
}

function count(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? '' : 's'}`;
}

/** The number of successive elements that a thread holds, along the last axis. */
function run(reg: readonly number[]): number {
  let n = 1;
  while (reg.includes(n)) {
    n *= 2;
  }
  return n;
}

/** The extent of the elements that one warp holds, such as "8 x 32 elements". */
function extent(shape: readonly number[], lane: readonly number[], reg: readonly number[]): string {
  const bits = [...lane, ...reg];
  const sizes = shape.map((size, axis) => {
    const inner = shape.slice(axis + 1).reduce((a, b) => a * b, 1);
    return 1 << bits.filter((bit) => bit >= inner && bit < inner * size).length;
  });
  return `${sizes.join(' x ')} elements`;
}
