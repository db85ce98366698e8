/**
 * The Launch view: the arrays of a launch with the tiles of the current program outlined. The user steps through, or plays, the
 * iterations, programs or waves in launch order, while the view counts the bytes that are loaded for the first time and again.
 */

import { button, h } from '../dom';
import { LaunchPlayer, type Unit, UNITS } from '../launch_player';
import { type LinkParts, numberIn } from '../link_target';
import { onLook } from '../palettes';
import { type Played, Playing } from '../playing';
import { PendingLink } from '../pending_link';
import { placeOf } from '../launch_place';
import { LaunchPictures } from '../plot/launch_pictures';
import type { Store } from '../store';
import { bytesText, emptyReason, launchKey, load, mustLoad, regionText, type LaunchFacts } from '../teaching';
import type { ExportedLaunch } from '../film/launch_film';
import { type ExportControls, exportControls } from './launch_export';
import { whereText } from './launch_text';
import type { Mounted, ViewSpec } from './spec';

export const launch: ViewSpec = {
  key: 'launch',
  title: 'Launch',
  tooltip: 'The tiles of each program on the arrays, and the bytes that it moves',
  empty: (_, store) => emptyReason(store, 'launch'),
  mount: (panel, store) => new LaunchView(panel, store),
};

const SPEEDS = [1, 4, 15, 60] as const; // steps per second
const MOST_TILES = 12; // in the list below the pictures

class LaunchView implements Mounted {
  private facts: LaunchFacts | null = null;
  private player: LaunchPlayer | null = null;
  private loaded = '';
  private token = 0;
  private readonly pictures = new LaunchPictures((text) => (this.hover.textContent = text));
  private readonly slider = h('input.bnb-launch-slider', {
    type: 'range',
    min: 0,
    value: 0,
    'aria-label': 'Step',
    title: 'The step of the launch',
  });
  private readonly playing: Playing;
  private readonly where = h('p.bnb-verdict', { 'data-part': 'where' });
  private readonly counters = h('div.bnb-counters', { role: 'status' });
  private readonly tiles = h('ul.bnb-launch-tiles', { 'aria-label': 'Tiles of this step' });
  private readonly hover = h('p.bnb-details');
  private readonly status = h('p.bnb-quiet', { role: 'status' });
  private readonly tools = h('div.bnb-tools');
  /** The elements that a launch without steps hides. */
  private readonly parts = [
    this.tools,
    this.where,
    this.counters,
    this.pictures.element,
    this.hover,
    this.tiles,
  ];
  private readonly stopPlace: () => void;
  private readonly stopLook: () => void;
  readonly link = new PendingLink(
    () => this.linkParts(),
    (parts, missing) => this.showLink(parts, missing),
  );
  private readonly unit = h('select.bnb-select', {
    'aria-label': 'Step by',
    title: 'What one step is',
    'data-tool': 'unit',
  });
  private readonly exports: ExportControls;
  readonly keys = [
    ['← →', 'previous or next step'],
    ['space', 'play or pause'],
  ] as const;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.playing = new Playing(panel, SPEEDS[1], () => this.player && this.played(this.player));
    panel.append(...this.parts, this.status);
    this.exports = exportControls(() => this.exported());
    this.tools.after(this.exports.form);
    this.buildTools();
    this.stopLook = onLook(store, () => this.drawAgain());
    this.stopPlace = placeOf(store).onChange((place, from) => {
      const at =
        from === 'launch' ? undefined : this.player?.find(place.program, place.iteration, place.line);
      if (at !== undefined) {
        this.go(at, false);
      }
    });
    this.tiles.addEventListener('click', (event) => {
      const line = Number((event.target as Element).closest<HTMLElement>('[data-line]')?.dataset.line);
      if (line) {
        this.store.pin({ lines: [line], op: null, from: 'launch' });
        placeOf(this.store).set({ line }, 'launch');
      }
    });
    this.store.run(this.load());
  }

  update(change: string): void {
    if (mustLoad(this.store, change, this.loaded, this.facts !== null)) {
      this.store.run(this.load());
    }
  }

  key(event: KeyboardEvent): boolean {
    return this.playing.key(event, (by) => this.advance(by));
  }

  advance(by: number): void {
    this.playing.pause();
    this.go((this.player?.at ?? 0) + by);
  }

  dispose(): void {
    this.playing.pause();
    this.exports.cancel();
    this.stopPlace();
    this.stopLook();
    this.pictures.dispose();
  }

  private buildTools(): void {
    this.unit.append(...UNITS.map((unit) => h('option', { value: unit }, unit)));
    this.unit.addEventListener('change', () => {
      this.chooseUnit(this.unit.value as Unit);
      this.go(this.player?.at ?? 0);
    });
    const speed = h('select.bnb-select', {
      'aria-label': 'Steps per second',
      title: 'The speed of playing',
      'data-tool': 'speed',
    });
    speed.append(
      ...SPEEDS.map((s) => h('option', { value: s, selected: s === this.playing.speed }, `${s} per second`)),
    );
    speed.addEventListener('change', () => (this.playing.speed = Number(speed.value)));
    this.slider.addEventListener('input', () => {
      this.playing.pause();
      this.go(Number(this.slider.value));
    });
    this.tools.append(
      button('|‹', () => this.advance(-Infinity), { 'aria-label': 'First step', title: 'First step' }),
      button('‹', () => this.advance(-1), { 'aria-label': 'Previous step', title: 'Previous step' }),
      this.playing.button,
      button('›', () => this.advance(1), { 'aria-label': 'Next step', title: 'Next step' }),
      this.slider,
      h('label', {}, 'step by ', this.unit),
      h('label', {}, 'play ', speed),
      this.exports.open,
    );
  }

  private async load(asked?: Record<string, unknown>): Promise<void> {
    const token = ++this.token;
    this.playing.pause();
    this.loaded = launchKey(this.store);
    this.status.textContent = 'Following the programs of the launch…';
    let found: { facts: LaunchFacts | null; why: string };
    try {
      found = await load<LaunchFacts>(this.store, 'launch', asked);
    } catch (error) {
      found = { facts: null, why: (error as Error).message };
    }
    if (token === this.token) {
      if (!found.facts && this.store.host.request) {
        this.link.drop(); // the kernel refuses; without a kernel, the link waits for one
      }
      this.show(found.facts, found.why);
    }
  }

  private show(facts: LaunchFacts | null, why: string): void {
    this.facts = facts;
    for (const part of this.parts) {
      part.hidden = !facts?.steps.length;
    }
    if (!facts?.steps.length) {
      this.player = null;
      this.status.textContent = facts ? 'The programs access no array.' : why;
      return;
    }
    this.player = new LaunchPlayer(facts, this.unit.value as Unit);
    this.slider.max = String(this.player.count - 1);
    this.pictures.show(facts);
    this.paintStatus(facts);
    const { program, iteration, line } = placeOf(this.store).get();
    this.go(this.player.find(program, iteration, line) ?? 0, false);
    this.link.retry();
  }

  private chooseUnit(unit: Unit): void {
    this.player?.choose(unit);
    this.slider.max = String((this.player?.count ?? 1) - 1);
  }

  private linkParts(): LinkParts {
    const { facts, player } = this;
    return facts && player
      ? { by: player.unit, step: String(player.at), ...(facts.first && { first: String(facts.first) }) }
      : {};
  }

  /** Shows what a link asks for. */
  private showLink(parts: LinkParts, missing: (sentence: string) => void): boolean {
    const { facts, player } = this;
    if (!facts || !player) {
      return false;
    }
    const first = numberIn(parts, 'first', facts.programs - 1, missing) ?? 0;
    if (first !== facts.first && this.store.host.request && this.link.asks(String(first))) {
      this.store.run(this.load({ first }));
      return false;
    }
    if (first !== facts.first) {
      missing(`This card begins with program ${facts.first} of the launch order, not with ${first}`);
    }
    const unit = UNITS.find((one) => one === parts.by);
    if (unit) {
      this.unit.value = unit;
      this.chooseUnit(unit);
    }
    this.playing.pause();
    this.go(numberIn(parts, 'step', player.count - 1, missing) ?? player.at);
    return true;
  }

  /** Asks for the programs that the user chooses. */
  private choose(first: number): void {
    this.link.drop();
    this.store.run(this.load({ first }));
  }

  /** Says what the steps cover, and offers the programs that they leave out. */
  private paintStatus(facts: LaunchFacts): void {
    const last = facts.steps[facts.steps.length - 1][0][0];
    const shown =
      facts.cut || facts.first
        ? `These are programs ${facts.first} to ${last} of the launch order; there are ${facts.programs}. `
        : '';
    const order = facts.ordered
      ? 'The GPU launches the programs in another order than that of the grid. '
      : '';
    this.status.replaceChildren(
      `${shown}${order}An element counts once per execution of an op (${facts.scope}).`,
    );
    if (this.store.host.request && facts.first) {
      this.status.append(
        ' ',
        button('First programs', () => this.choose(0)),
      );
    }
    if (this.store.host.request && facts.cut) {
      this.status.append(
        ' ',
        button('Next programs', () => this.choose(last + 1)),
      );
    }
  }

  /** What an exported animation shows. */
  private exported(): ExportedLaunch | null {
    return this.facts && this.player
      ? {
          kernel: this.store.doc.kernel,
          facts: this.facts,
          unit: this.player.unit,
          speed: this.playing.speed,
          look: this.pictures.element,
        }
      : null;
  }

  /** Draws the arrays and the current step, in the present colours. */
  private drawAgain(): void {
    if (this.facts && this.player) {
      this.pictures.show(this.facts);
      this.go(this.player.at, false);
    }
  }

  private played(player: LaunchPlayer): Played {
    return { count: player.count, at: player.at, go: (at, last) => this.go(at, last) };
  }

  private go(at: number, tell = true): void {
    const { facts, player } = this;
    if (!facts || !player) {
      return;
    }
    player.go(at);
    this.slider.value = String(player.at);
    const [from, to] = player.span;
    this.pictures.paint(from, to);
    const [[, program]] = facts.steps[to];
    const loop = player.loopPlace(to);
    this.where.textContent = whereText(facts, player);
    this.paintCounters(facts, player.counted());
    this.paintTiles(facts, from, to);
    this.slider.setAttribute('aria-valuetext', this.where.textContent ?? '');
    if (tell) {
      const line = loop.loops ? { line: player.lineOf(to) || null } : {};
      placeOf(this.store).set({ program, iteration: loop.iteration, ...line }, 'launch');
    }
  }

  private paintCounters(facts: LaunchFacts, [loaded, first, stored]: readonly number[]): void {
    const reused = loaded - first;
    const share = loaded ? (100 * first) / loaded : 100;
    const counter = (key: string, label: string, bytes: number): HTMLElement =>
      h(
        'div.bnb-counter',
        { 'data-counter': key, 'data-bytes': bytes },
        h('span.bnb-counter-number', {}, bytesText(bytes)),
        h('span.bnb-quiet', {}, label),
      );
    const bar = h('div.bnb-reuse-bar', { 'aria-hidden': 'true' });
    const part = h('div.bnb-reuse-first');
    part.style.width = `${share}%`;
    bar.append(part);
    const factor = first ? (loaded / first).toFixed(2) : '–';
    const [all, unique, written] = facts.totals;
    this.counters.replaceChildren(
      counter('loaded', 'loaded so far', loaded),
      counter('first', 'for the first time', first),
      counter('reused', `again (each byte ${factor} times)`, reused),
      counter('stored', 'stored', stored),
      bar,
      h(
        'p.bnb-quiet',
        {},
        `The whole launch loads ${bytesText(all)}, ${bytesText(unique)} of them for the first time, and stores ${bytesText(written)}.`,
      ),
    );
  }

  private paintTiles(facts: LaunchFacts, from: number, to: number): void {
    const rows = new Map<string, number>();
    for (let step = from; step <= to && rows.size <= MOST_TILES; step++) {
      for (const [op, index] of facts.steps[step][3]) {
        const [array, kind, line] = facts.ops[op];
        const flat = facts.rects[index];
        const rough = flat[0] === -1;
        const first = regionText(facts.arrays[array], flat.slice(rough ? 1 : 0, rough ? 5 : 4));
        const more = !rough && flat.length > 4 ? ` and ${flat.length / 4 - 1} more pieces` : '';
        rows.set(`${kind} ${rough ? 'elements inside ' : ''}${first}${more}`, line);
      }
    }
    const items = [...rows]
      .slice(0, MOST_TILES)
      .map(([text, line]) =>
        h(
          'li',
          { 'data-kind': text.split(' ')[0] },
          h('code', {}, text),
          line ? h('button.bnb-link', { type: 'button', 'data-line': line }, `line ${line}`) : null,
        ),
      );
    const more = rows.size > MOST_TILES ? [h('li.bnb-quiet', {}, 'and more')] : [];
    this.tiles.replaceChildren(...items, ...more);
  }
}
