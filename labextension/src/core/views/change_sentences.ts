/**
 * What a pass changed, in sentences, above the diff. The kernel makes them (blocknb/ir_diff): those of successive stages are saved in the
 * document, and a live kernel makes those of any two stages. A click on a sentence selects its ops in all listings.
 */

import { button, h, renderBackquotes } from '../dom';
import type { ChangeSentence } from '../schema';
import { type Check, integer, list, number, object, record, shaped, text } from '../check';
import type { Store } from '../store';

const ids = list(integer(), 100_000);
const sentence = shaped<ChangeSentence>({
  text: text(1 << 14),
  weight: number(0, 1000),
  before: ids,
  after: ids,
  lines: list(integer(0, 1e7), 10_000),
});
/** A list of sentences. */
export const sentenceList: Check = list(sentence, 10_000);
/** The answer of a live kernel. */
const answered: Check = object({ sentences: sentenceList });
/** The packed part "changes": sentences by view and pass. */
const packedChanges: Check = record(record(sentenceList, /^/, 1000), /^\d{1,3}$/, 100);

type Packed = Record<string, Record<string, ChangeSentence[]>>;

/** Sentences with a lower weight, on index arithmetic and order, are behind a click. */
const MINOR = 40;
const SHOWN = 8;

/** The sentences on the selected comparison. */
export class ChangeList {
  readonly element = h('div.bnb-changes', { hidden: true, 'aria-label': 'What changed' });
  private token = 0;
  private readonly answers = new Map<string, Promise<ChangeSentence[]>>();
  private packed: { text: string; found: Promise<Packed> } | null = null;

  constructor(
    private readonly store: Store,
    private readonly from: string,
  ) {}

  /** Shows the changes from the stage with index `a` to that with index `b`. -1 as `a`: the stage before. */
  async show(a: number, b: number): Promise<void> {
    const token = ++this.token;
    const [first, last] = a < 0 ? [b - 1, b] : [Math.min(a, b), Math.max(a, b)];
    const groups = first < 0 ? [] : await this.groups(first, last);
    if (token === this.token) {
      this.paint(groups);
    }
  }

  /** The sentences by heading. A saved card has those of each pass between the two stages. */
  private async groups(a: number, b: number): Promise<[string, ChangeSentence[]][]> {
    const { stages, host, view } = this.store;
    if (host.request && b > a + 1) {
      const key = `${view} ${a} ${b} ${this.store.doc.version} ${stages[b]?.text}`;
      const request = host.request.bind(host);
      const asked = this.answers.get(key) ?? requested(request, { view, a, b });
      this.answers.set(key, asked);
      return [['', await asked]];
    }
    const saved = (await this.saved())[String(view)] ?? {};
    if (b === a + 1) {
      const own = saved[stages[b]?.name] ?? [];
      return [
        ['', own.length || !host.request ? own : await requested(host.request.bind(host), { view, a, b })],
      ];
    }
    return stages.slice(a + 1, b + 1).flatMap((stage): [string, ChangeSentence[]][] => {
      const told = (saved[stage.name] ?? []).filter(({ weight }) => weight >= MINOR);
      return told.length ? [[stage.name, told]] : [];
    });
  }

  private async saved(): Promise<Packed> {
    const packed = this.store.doc.changes?.packed;
    if (!packed) {
      return {};
    }
    if (this.packed?.text !== packed) {
      const found = this.store.inflated(packed, packedChanges).then((value) => (value ?? {}) as Packed);
      this.packed = { text: packed, found };
    }
    return this.packed.found;
  }

  private paint(groups: [string, ChangeSentence[]][]): void {
    this.element.hidden = !groups.some(([, told]) => told.length);
    this.element.replaceChildren(
      ...groups
        .flatMap(([heading, told]) => [
          heading ? h('p.bnb-quiet', {}, `by ${heading}:`) : null,
          ...sentenceLists(told, this.store, this.from),
        ])
        .filter((element) => element !== null),
    );
  }
}

async function requested(
  request: (what: string, content: Record<string, unknown>) => Promise<unknown>,
  content: Record<string, unknown>,
): Promise<ChangeSentence[]> {
  const answer = await request('changes', content).catch(() => null);
  if (answer === null) {
    return [];
  }
  answered(answer, 'the answer of the kernel');
  return (answer as { sentences: ChangeSentence[] }).sentences;
}

/** A list of sentences as buttons; the minor ones are folded. */
export function sentenceLists(told: readonly ChangeSentence[], store: Store, from: string): HTMLElement[] {
  const major = told.filter(({ weight }, i) => weight >= MINOR && i < SHOWN);
  const minor = told.filter((one) => !major.includes(one));
  const entries = (some: readonly ChangeSentence[]): HTMLElement =>
    h('ul.bnb-sentences', {}, ...some.map((one) => h('li', {}, entry(one, store, from))));
  const found = major.length ? [entries(major)] : [];
  if (minor.length) {
    const title = major.length
      ? `${minor.length} smaller change${minor.length > 1 ? 's' : ''}`
      : 'Small changes';
    found.push(
      h(
        'details.bnb-minor',
        {},
        h('summary', { title: 'Show or hide the smaller changes' }, title),
        entries(minor),
      ) as unknown as HTMLUListElement,
    );
  }
  return found;
}

function entry(one: ChangeSentence, store: Store, from: string): HTMLElement {
  const ops = [...one.after, ...one.before];
  const select = button('', () => store.pin({ lines: one.lines, op: ops[0] ?? null, ops, from }), {
    title: 'Select the ops of this change in all listings',
  });
  select.className = 'bnb-sentence';
  select.append(...renderBackquotes(one.text));
  return select;
}
