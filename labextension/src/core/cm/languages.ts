/** Syntax highlighting for the languages of a card. Each language has a small stream parser, built from a table of tokens. */

import { StreamLanguage, type StreamParser, type StringStream } from '@codemirror/language';

/** The languages of a card. */
export type Language = 'ir' | 'llvm' | 'ptx' | 'sass' | 'asm' | 'python' | 'text';

interface Rules {
  comment: RegExp;
  /** The parser tries these in order; the first match names the token. */
  tokens: [RegExp, string][];
}

const NUMBER = /-?(0x[0-9a-f]+|\d+\.?\d*(e[+-]?\d+)?|0[fFdD][0-9a-f]+)\b/i;
const STRING = /"(\\.|[^"\\])*"?/;

const RULES: Record<Exclude<Language, 'text'>, Rules> = {
  ir: {
    comment: /\/\/.*/,
    tokens: [
      [STRING, 'string'],
      [/%[\w.]+/, 'variableName'],
      [/#[a-z]+\b/, 'labelName'],
      [/@\w+/, 'atom'],
      [/\b(tile|buffer|ptr)\b(?=<)/, 'typeName'],
      [/\b([iuf]\d+|bf16|f8\w*)\b/, 'typeName'],
      [/\b(func|for|to|step|iter|while|do|if|else|yield|condition|div|was)\b/, 'keyword'],
      [NUMBER, 'number'],
      [/[A-Za-z_]\w*/, 'operatorKeyword'],
    ],
  },
  llvm: {
    comment: /;.*/,
    tokens: [
      [STRING, 'string'],
      [/%[\w.]+/, 'variableName'],
      [/[@!#][\w.]+/, 'atom'],
      [/\b(i\d+|half|bfloat|float|double|ptr|void|label|metadata)\b/, 'typeName'],
      [
        /\b(define|declare|br|ret|phi|call|load|store|getelementptr|select|switch|unreachable|tail|to|align)\b/,
        'keyword',
      ],
      [NUMBER, 'number'],
      [/[A-Za-z_][\w.]*/, 'operatorKeyword'],
    ],
  },
  ptx: {
    comment: /\/\/.*/,
    tokens: [
      [STRING, 'string'],
      [/%\w+(\.\w+)?/, 'variableName'],
      [/@!?%\w+/, 'labelName'],
      [/\$\w+/, 'labelName'],
      [
        /\.(version|target|address_size|visible|entry|reg|shared|param|extern|global|file|loc|section|align|maxntid|func)\b/,
        'keyword',
      ],
      [/\.[a-z]\w*/, 'typeName'],
      [NUMBER, 'number'],
      [/[a-zA-Z_]\w*/, 'operatorKeyword'],
    ],
  },
  sass: {
    comment: /\/\*.*?\*\/|\/\/.*/,
    tokens: [
      [/@!?U?P\d+|@!?U?PT/, 'labelName'],
      [/\bU?R\d+\b|\bU?RZ\b|\bU?P\d+\b|\bU?PT\b|\bSR_\w+/, 'variableName'],
      [/\.[A-Z0-9_]+/, 'typeName'],
      [/c\[0x[0-9a-f]+\]\[[^\]]*\]/, 'atom'],
      [NUMBER, 'number'],
      [/[A-Z][A-Z0-9]*/, 'operatorKeyword'],
    ],
  },
  asm: {
    comment: /\/\/.*|;.*|#(?![-\d:]).*/, // Arm writes immediate operands as #4
    tokens: [
      [STRING, 'string'],
      [/%\w+|\b(?:[vqdshbxw]\d+(?:\.\d*[bhsd])?|[xw]zr|sp)\b/, 'variableName'],
      [/^\.?[\w$.]+:/, 'labelName'],
      [/\.\w+/, 'keyword'],
      [NUMBER, 'number'],
      [/[a-z]\w*/, 'operatorKeyword'],
    ],
  },
  python: {
    comment: /#.*/,
    tokens: [
      [/[rbf]?("""|''')/i, 'string'],
      [/[rbf]?("(\\.|[^"\\])*"?|'(\\.|[^'\\])*'?)/i, 'string'],
      [/@[\w.]+/, 'atom'],
      [
        /\b(def|return|if|elif|else|for|while|in|and|or|not|is|import|from|as|pass|assert|None|True|False|lambda)\b/,
        'keyword',
      ],
      [NUMBER, 'number'],
      [/\b[A-Za-z_]\w*(?=\()/, 'operatorKeyword'],
      [/[A-Za-z_]\w*/, 'variableName'],
    ],
  },
};

function parser(rules: Rules): StreamParser<unknown> {
  return {
    token(stream: StringStream): string | null {
      if (stream.eatSpace()) {
        return null;
      }
      if (stream.match(rules.comment)) {
        return 'comment';
      }
      for (const [pattern, name] of rules.tokens) {
        if (stream.match(pattern)) {
          return name;
        }
      }
      stream.next();
      return null;
    },
  };
}

const languages = new Map<Language, StreamLanguage<unknown>>();

/** Returns the highlighter of a language. Plain text has none. */
export function language(name: Language): StreamLanguage<unknown> | [] {
  if (name === 'text') {
    return [];
  }
  let found = languages.get(name);
  if (!found) {
    found = StreamLanguage.define(parser(RULES[name]));
    languages.set(name, found);
  }
  return found;
}
