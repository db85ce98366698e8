/**
 * The Step view: the source of the kernel with the values of one or two programs beside each line. The user steps forwards and backwards,
 * plays, and runs to breakpoints, also through helpers. The values are a record of `kernel.interpret`; the view executes nothing.
 */

import { button, h } from '../dom';
import { helperLine } from '../helpers';
import { type LinkParts, numberIn } from '../link_target';
import { PendingLink } from '../pending_link';
import { placeOf } from '../launch_place';
import { TilePicture, thumbnail } from '../plot/tile_picture';
import { type Played, Playing } from '../playing';
import { StepPlayer, type LineStep } from '../step_player';
import type { Store } from '../store';
import {
  emptyReason,
  launchKey,
  load,
  mustLoad,
  programText,
  type StepEvent,
  type StepFacts,
} from '../teaching';
import type { Mounted, ViewSpec } from './spec';
import { HelperRows, lineCells, placeText } from './step_lines';
import { type ChosenValue, otherPrograms, stepParts, valueIn } from './step_link';

export const step: ViewSpec = {
  key: 'step',
  title: 'Step',
  tooltip: 'The values of one program, line by line',
  empty: (_, store) => emptyReason(store, 'step'),
  mount: (panel, store) => new StepView(panel, store),
};

const SPEED = 2; // lines per second

class StepView implements Mounted {
  private facts: StepFacts | null = null;
  private player: StepPlayer | null = null;
  private loaded = '';
  private token = 0;
  /** The shown value: program and name, so that the large picture follows it. */
  private chosen: ChosenValue | null = null;
  readonly link = new PendingLink(
    () => (this.facts && this.player ? stepParts(this.facts, this.player.at, this.chosen) : {}),
    (parts, missing) => this.showLink(parts, missing),
  );
  private readonly cells = new Map<string, { element: HTMLElement; step: LineStep | undefined }>();
  private helpers: HelperRows | null = null;
  private readonly picture = new TilePicture();
  private readonly playing: Playing;
  private readonly programs = [0, 1].map((i) =>
    h('input.bnb-filter.bnb-program-input', {
      type: 'number',
      min: 0,
      placeholder: 'none',
      'aria-label': i ? 'Second program' : 'Program',
      title: i ? 'The number of a program to compare with' : 'The number of the program to show',
    }),
  );
  private readonly slider = h('input', {
    type: 'range',
    min: 0,
    value: 0,
    'aria-label': 'Executed line',
    title: 'The executed line',
  });
  private readonly over = button('↷', () => this.stepOver(), {
    'aria-label': 'Step over',
    title: 'Next line, over the helpers that this line calls',
  });
  private readonly tools = h('div.bnb-tools');
  private readonly where = h('p.bnb-verdict', { 'data-part': 'where', role: 'status' });
  private readonly lines = h('div.bnb-step-lines', { role: 'group', 'aria-label': 'Source and values' });
  private readonly results = h('div.bnb-step-results', { 'aria-label': 'Result' });
  private readonly status = h('p.bnb-quiet', { role: 'status' });
  private readonly stopPlace: () => void;
  readonly keys = [
    ['← →', 'previous or next line'],
    ['space', 'play or pause'],
    ['c', 'run to the next breakpoint'],
    ['o', 'step over the helpers that a line calls'],
  ] as const;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.playing = new Playing(panel, SPEED, () => this.player && this.played(this.player));
    panel.append(this.results, this.tools, this.where, this.lines, this.picture.element, this.status);
    this.buildTools();
    this.stopPlace = placeOf(store).onChange((place, from) => {
      if (from !== 'step') {
        this.follow(place.program, place.line, place.iteration);
      }
    });
    this.lines.addEventListener('click', (event) => this.click(event));
    this.results.addEventListener('click', (event) => {
      const at = (event.target as Element).closest<HTMLElement>('[data-result]')?.dataset.result;
      const [name, value] = this.facts?.results[Number(at)] ?? [];
      if (at !== undefined && name !== undefined && value !== undefined) {
        this.chosen = null;
        this.picture.show(name, 'after the launch', this.facts!.values[value]);
      }
    });
    this.store.run(this.load());
  }

  update(change: string): void {
    if (mustLoad(this.store, change, this.loaded, this.facts !== null)) {
      this.store.run(this.load());
    } else if (change === 'host') {
      this.programs.forEach((input) => (input.disabled = !this.store.host.request));
    } else if (change === 'selection') {
      const selected = this.store.selection;
      for (const row of this.lines.querySelectorAll<HTMLElement>('[data-source]')) {
        const line = Number(row.dataset.source);
        const lit =
          selected?.from !== 'step' && (selected?.lines.includes(line) || selected?.inner?.includes(line));
        row.classList.toggle('bnb-highlight', Boolean(lit));
      }
    }
  }

  key(event: KeyboardEvent): boolean {
    if (this.playing.key(event, (by) => this.advance(by))) {
      return true;
    }
    if (event.key === 'c') {
      this.run(1);
    } else if (event.key === 'o') {
      this.stepOver();
    } else {
      return false;
    }
    return true;
  }

  advance(by: number): void {
    this.playing.pause();
    this.go((this.player?.at ?? 0) + by);
  }

  dispose(): void {
    this.playing.pause();
    this.stopPlace();
  }

  private stepOver(): void {
    this.playing.pause();
    this.player?.over();
    this.go(this.player?.at ?? 0);
  }

  private buildTools(): void {
    this.slider.addEventListener('input', () => {
      this.playing.pause();
      this.go(Number(this.slider.value));
    });
    this.programs.forEach((input) => input.addEventListener('change', () => this.store.run(this.request())));
    this.tools.append(
      button('|‹', () => this.advance(-Infinity), { 'aria-label': 'First line', title: 'First line' }),
      button('●‹', () => this.run(-1), {
        title: 'back to the previous breakpoint',
        'aria-label': 'Back to breakpoint',
      }),
      button('‹', () => this.advance(-1), { 'aria-label': 'Previous line', title: 'Previous line' }),
      this.playing.button,
      button('›', () => this.advance(1), { 'aria-label': 'Next line', title: 'Next line' }),
      this.over,
      button('›●', () => this.run(1), {
        title: 'run to the next breakpoint',
        'aria-label': 'Run to breakpoint',
      }),
      this.slider,
      h('label', {}, 'program ', this.programs[0]),
      h('label', {}, 'beside ', this.programs[1]),
    );
  }

  /** Asks for the programs of the fields. */
  private request(): Promise<void> {
    this.link.drop();
    const wanted = this.programs.map((input) => input.value.trim()).filter((text) => text !== '');
    return this.load({ programs: wanted.length ? wanted.map(Number) : [0] });
  }

  private async load(asked?: Record<string, unknown>): Promise<void> {
    const token = ++this.token;
    this.playing.pause();
    this.loaded = launchKey(this.store);
    this.status.textContent = 'Running the program in the interpreter…';
    const { program } = placeOf(this.store).get();
    const first = !asked && program && this.store.host.request ? { programs: [program] } : asked;
    let found: { facts: StepFacts | null; why: string };
    try {
      found = await load<StepFacts>(this.store, 'step', first);
    } catch (error) {
      found = { facts: null, why: (error as Error).message };
    }
    if (token !== this.token) {
      return;
    }
    if (!found.facts && this.store.host.request) {
      this.link.drop(); // the kernel refuses; without a kernel, the link waits for one
    }
    if (!found.facts && this.facts && asked) {
      this.status.textContent = found.why; // a wrong program: the shown one stays
      return;
    }
    this.show(found.facts, found.why);
  }

  private show(facts: StepFacts | null, why: string): void {
    const old = this.player;
    const place = old?.steps[0][old.at];
    this.facts = facts;
    for (const part of [this.tools, this.where, this.lines, this.picture.element, this.results]) {
      part.hidden = !facts;
    }
    if (!facts) {
      this.player = null;
      this.status.textContent = why;
      return;
    }
    this.player = new StepPlayer(facts);
    old?.breakpoints.forEach((line) => this.player!.breakpoints.add(line));
    this.slider.max = String(Math.max(0, this.player.count - 1));
    this.programs.forEach((input, i) => {
      input.value = String(facts.runs[i]?.program ?? '');
      input.disabled = !this.store.host.request;
    });
    const said = facts.runs.flatMap((run) => [
      run.error ? `Program ${run.program} failed: ${run.error}` : '',
      run.cut
        ? `The record of program ${run.program} ends after ${run.events.length} events: ${run.cut}.`
        : '',
    ]);
    this.status.textContent = [...said, facts.note].filter(Boolean).join(' ');
    this.buildLines(facts);
    this.paintResults(facts);
    this.chosen = null;
    const at = place && this.player.find(place.line, place.occurrence);
    this.go(at ?? this.player.firstTile, false);
    this.link.retry();
  }

  /** Shows what a link asks for. Programs that the card does not have come from the kernel first. */
  private showLink(parts: LinkParts, missing: (text: string) => void): boolean {
    const { facts, player } = this;
    if (!facts || !player) {
      return false;
    }
    const programs = otherPrograms(parts, facts, missing);
    if (programs && this.store.host.request && this.link.asks(String(programs))) {
      this.store.run(this.load({ programs }));
      return false;
    }
    if (programs) {
      missing(`The values of program ${programs.join(' and ')} are not saved`);
    }
    this.chosen = valueIn(parts);
    this.go(numberIn(parts, 'step', player.count - 1, missing) ?? player.at);
    return true;
  }

  private paintResults(facts: StepFacts): void {
    this.results.replaceChildren(
      ...facts.results.map(([name, value], i) =>
        h(
          'button.bnb-chip',
          { type: 'button', 'data-result': i, title: 'the array after the launch' },
          h('span.bnb-quiet', {}, 'result'),
          h('code', {}, name),
          thumbnail(facts.values[value], 96, 28),
          h(
            'span.bnb-chip-text',
            {},
            `${facts.values[value].dtype}[${facts.values[value].shape.join(', ')}]`,
          ),
        ),
      ),
    );
  }

  private buildLines(facts: StepFacts): void {
    this.cells.clear();
    const { first_line, text } = this.store.doc.source;
    const heads = facts.runs.map((run) =>
      h('div.bnb-step-head', {}, `program ${programText(run.program, facts.grid)}`),
    );
    const rows = text
      .replace(/\n$/, '')
      .split('\n')
      .flatMap((code, i) => lineCells(first_line + i, first_line + i, code, facts.runs.length));
    this.helpers = new HelperRows(this.lines, facts, facts.runs.length);
    this.over.hidden = !this.player!.helpers;
    for (const element of [...rows, ...this.helpers.cells]) {
      const { run, at } = element.dataset;
      if (at !== undefined) {
        this.cells.set(`${run}:${at}`, { element, step: undefined });
      }
    }
    this.lines.dataset.programs = String(facts.runs.length);
    this.lines.replaceChildren(
      h('div.bnb-step-head'),
      h('div.bnb-step-head', {}, 'source'),
      ...heads,
      ...rows,
    );
    this.paintBreakpoints();
  }

  private paintBreakpoints(): void {
    for (const mark of this.lines.querySelectorAll<HTMLElement>('[data-break]')) {
      mark.setAttribute('aria-pressed', String(this.player!.breakpoints.has(Number(mark.dataset.break))));
    }
  }

  private click(event: Event): void {
    const target = event.target as Element;
    const mark = target.closest<HTMLElement>('[data-break]');
    const chip = target.closest<HTMLElement>('[data-event]');
    const source = target.closest<HTMLElement>('[data-source]');
    if (mark && this.player) {
      const line = Number(mark.dataset.break);
      if (!this.player.breakpoints.delete(line)) {
        this.player.breakpoints.add(line);
      }
      this.paintBreakpoints();
    } else if (chip) {
      const cell = chip.closest<HTMLElement>('[data-at]')!;
      const [run, line] = [Number(cell.dataset.run), Number(cell.dataset.at)];
      const one = this.cells.get(`${run}:${line}`)?.step?.events[Number(chip.dataset.event)];
      if (one) {
        this.chosen = { run, name: one[2], line };
        this.showEvent(one, run);
      }
    } else if (source) {
      const place = Number(source.dataset.source);
      const call = this.current?.calls[0];
      const inner = this.facts && helperLine(this.facts, place) && call !== undefined;
      this.store.pin({
        ...(inner ? { lines: [call], inner: [place] } : { lines: [place] }),
        op: null,
        from: 'step',
      });
    }
  }

  /** Moves to a line and program that another view selected. */
  private follow(program: number, line: number | null, iteration: number): void {
    if (!this.player || !this.facts) {
      return;
    }
    if (this.facts.runs[0].program !== program && this.store.host.request) {
      this.programs[0].value = String(program);
      this.store.run(this.request());
    } else if (line !== null && this.facts.runs[0].program === program) {
      const at = this.player.find(line, iteration);
      if (at !== undefined) {
        this.go(at, false);
      }
    }
  }

  private run(by: 1 | -1): void {
    this.playing.pause();
    this.player?.run(by);
    this.go(this.player?.at ?? 0);
  }

  /** Playing stops at a breakpoint. */
  private played(player: StepPlayer): Played {
    return {
      count: player.count,
      at: player.at,
      go: (at) => {
        this.go(at);
        return player.breakpoints.has(player.line() ?? -1);
      },
    };
  }

  /** The current step of the first program. */
  private get current(): LineStep | undefined {
    return this.player?.steps[0][this.player.at];
  }

  private go(at: number, tell = true): void {
    const { facts, player } = this;
    if (!facts || !player?.count) {
      return;
    }
    player.go(at);
    this.slider.value = String(player.at);
    const now = player.steps[0][player.at];
    this.where.textContent = `${placeText(facts, now)} · ${player.at + 1} of ${player.count}`;
    this.helpers?.show([...now.calls, now.line]);
    this.paintBreakpoints();
    facts.runs.forEach((_, run) => this.paintRun(run));
    for (const source of this.lines.querySelectorAll<HTMLElement>('[data-source]')) {
      const line = Number(source.dataset.source);
      source.classList.toggle('bnb-step-now', line === now.line);
      source.classList.toggle('bnb-step-call', now.calls.includes(line));
    }
    this.scrollTo(now.line);
    this.showCurrent(now);
    if (tell) {
      const [line, iteration] = now.calls.length ? [now.calls[0], 0] : [now.line, now.occurrence];
      placeOf(this.store).set({ program: facts.runs[0].program, line, iteration }, 'step');
    }
  }

  /** Scrolls the lines, and not the page, to a line. */
  private scrollTo(line: number): void {
    const row = this.lines.querySelector<HTMLElement>(`[data-source="${line}"]`);
    if (row) {
      const top = row.offsetTop - this.lines.offsetTop;
      const last = top + 2 * row.offsetHeight - this.lines.clientHeight;
      this.lines.scrollTop = Math.max(last, Math.min(this.lines.scrollTop, top - 2 * row.offsetHeight));
    }
  }

  private paintRun(run: number): void {
    const latest = this.player!.latest(run);
    const other = run === 1 ? this.player!.latest(0) : null;
    const line = this.player!.line(run);
    for (const [key, cell] of this.cells) {
      const [of, at] = key.split(':').map(Number);
      if (of !== run) {
        continue;
      }
      const found = latest.get(at);
      cell.element.classList.toggle('bnb-step-now', at === line);
      if (found !== cell.step || other) {
        cell.step = found;
        const beside = other?.get(at)?.events;
        cell.element.replaceChildren(
          ...(found?.events ?? []).map((event, i) => this.chip(event, i, beside?.[i])),
        );
      }
    }
  }

  /** Creates the button of one event. `beside` is the same event of the other program. */
  private chip(event: StepEvent, index: number, beside?: StepEvent): HTMLElement {
    const [, what, name, text, value] = event;
    const found = value >= 0 ? this.facts!.values[value] : null;
    const differs = beside && (beside[4] !== value || beside[3] !== text);
    const label = what === 'set' ? `${name}` : what;
    return h(
      'button.bnb-chip',
      {
        type: 'button',
        'data-event': index,
        'data-what': what,
        'data-differs': differs ? 'true' : null,
        title: differs ? 'differs from the first program' : null,
      },
      h('code', {}, label),
      found && found.shape.length ? thumbnail(found) : null,
      h('span.bnb-chip-text', {}, what === 'set' && !found?.shape.length ? `= ${text}` : text),
    );
  }

  /** Shows the chosen value at its newest, otherwise the first tile of the current line. */
  private showCurrent(now: LineStep): void {
    if (this.chosen) {
      const { run, name, line } = this.chosen;
      const found = this.cells.get(`${run}:${line}`)?.step?.events.find((event) => event[2] === name);
      if (found) {
        this.showEvent(found, run);
        return;
      }
    }
    const tiles = now.events.filter((event) => event[4] >= 0 && this.facts!.values[event[4]].shape.length);
    const shown = tiles.find((event) => event[1] === 'set') ?? tiles[0] ?? now.events[0];
    this.showEvent(shown, 0);
  }

  private showEvent([, what, name, text, value, mask]: StepEvent, run: number): void {
    const { values, runs, grid } = this.facts!;
    const of = runs.length > 1 ? `, program ${programText(runs[run].program, grid)}` : '';
    this.picture.show(
      what === 'set' ? name : text.split(',').length > 1 || text ? `${what} ${name}` : what,
      `${text}${of}`,
      value >= 0 ? values[value] : null,
      mask >= 0 ? values[mask] : null,
    );
  }
}
