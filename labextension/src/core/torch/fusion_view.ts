/**
 * The Graph view of a compiled model: operators are nodes, data flows down, and a kernel is a box around the operators that it fuses. The
 * darker a box, the larger its share of the time. The kernel has placed everything (blocknb/notebook/fusion_layout.py).
 *
 * Boxes are the stops of the keyboard. What the pointer shows of operators and edges, the description of the selected box has, too.
 */

import { button, h, svg } from '../dom';
import { saveButtons } from '../plot/export';
import { explore } from '../plot/frame';
import { digits, time } from '../plot/numbers';
import type { ProgramLine, TorchGraph, TorchGroup } from '../schema';
import type { Store } from '../store';
import type { Mounted, ViewSpec } from '../views/spec';
import { programLines } from './kernels_view';
import { selectionOf } from './selected';

export const fusion: ViewSpec = {
  key: 'fusion',
  title: 'Graph',
  tooltip: 'The operators of the model, and the kernels that fuse them',
  empty: (doc) =>
    doc.torch?.graphs.length ? null : 'No launch of this run came from a graph that blocknb has seen.',
  mount: (panel, store) => new FusionView(panel, store),
};

const NODE_HEIGHT = 20;
const ZOOMS = [0.25, 0.35, 0.5, 0.7, 0.85, 1, 1.25, 1.6, 2];

class FusionView implements Mounted {
  private readonly selection;
  private readonly stop: () => void;
  private readonly choices = h('span', { role: 'group', 'aria-label': 'Graph' });
  private readonly place = h('div.bnb-fusion-place');
  private readonly about = h('div.bnb-fusion-about', { role: 'region', 'aria-label': 'Selected kernel' });
  private readonly status = h('p.bnb-quiet.bnb-description', { 'aria-live': 'polite' });
  private shown = -1;
  private zoom = 1;
  private plot: SVGSVGElement | null = null;
  private boxes: SVGGElement[] = [];
  private pair: SVGPathElement | null = null;
  readonly keys = [
    ['↑ ↓ ← →', 'next box (when a box has the focus)'],
    ['Enter', 'select the box'],
    ['+ −', 'zoom'],
  ] as const;

  constructor(
    panel: HTMLElement,
    private readonly store: Store,
  ) {
    this.selection = selectionOf(store);
    const zooms = h(
      'span',
      { role: 'group', 'aria-label': 'Zoom' },
      button('−', () => this.step(-1), { title: 'Smaller', 'aria-label': 'Smaller' }),
      button('+', () => this.step(1), { title: 'Larger', 'aria-label': 'Larger' }),
      button('Fit', () => this.fit(), { title: 'Show the whole graph' }),
    );
    const save = saveButtons(
      'fusion',
      () => this.plot,
      () => [],
    ).slice(0, 1);
    panel.append(
      h('div.bnb-tools', {}, this.choices, zooms, ...save),
      h('div.bnb-fusion', {}, h('div.bnb-fusion-picture', {}, this.place, this.status), this.about),
    );
    this.stop = this.selection.subscribe(() => this.follow());
    this.show(this.selection.places[0]?.graph ?? 0);
    this.follow();
  }

  update(change: string): void {
    if (change === 'document') {
      this.show(Math.min(Math.max(0, this.shown), this.graphs.length - 1));
      this.follow();
    }
  }

  key(event: KeyboardEvent): boolean {
    const by = { '+': 1, '=': 1, '-': -1 }[event.key];
    if (by) {
      this.step(by);
    }
    return by !== undefined;
  }

  dispose(): void {
    this.stop();
  }

  private get graphs(): readonly TorchGraph[] {
    return this.store.doc.torch?.graphs ?? [];
  }

  private show(index: number): void {
    this.shown = index;
    const graph = this.graphs[index];
    this.choices.replaceChildren(
      ...this.graphs.map((one, i) =>
        button(`${i}: ${one.name}`, () => this.choose(i), {
          'aria-pressed': String(i === index),
          title: `Show the ${one.name} graph`,
        }),
      ),
    );
    if (!graph?.width) {
      const why = graph ? 'This graph is too large for the document.' : 'There is no graph.';
      this.place.replaceChildren(h('p.bnb-empty', {}, why));
      this.plot = null;
      this.boxes = [];
      return;
    }
    this.draw(graph);
  }

  private choose(index: number): void {
    this.show(index);
    this.follow(false);
  }

  private draw(graph: TorchGraph): void {
    const { width, height } = graph;
    const label = `The ${graph.name} graph: ${graph.groups.length} kernels and external calls`;
    const plot = svg('svg', {
      class: 'bnb-fusion-plot',
      viewBox: `0 0 ${width} ${height}`,
      role: 'group',
      'aria-label': label,
    });
    this.plot = plot;
    this.boxes = graph.groups.map((group, i) => this.box(graph, group, i));
    this.pair = svg('path', { class: 'bnb-fusion-pair' });
    plot.append(...this.boxes, ...edges(graph), this.pair);
    explore(inRows(graph, this.boxes), (text) => void (this.status.textContent = text));
    this.place.replaceChildren(
      h('div.bnb-fusion-scroll', { tabindex: 0, role: 'region', 'aria-label': 'Graph of the fusion' }, plot),
    );
    this.scale(this.zoom);
  }

  private box(graph: TorchGraph, group: TorchGroup, i: number): SVGGElement {
    const [x, y, width, height] = group.box;
    const share = this.share(group);
    const element = svg('g', {
      class: `bnb-fusion-box bnb-fusion-${group.kind}`,
      role: 'button',
      'aria-label': this.describe(graph, group, i),
      'aria-pressed': 'false',
      tabindex: -1,
    });
    const hull = svg('rect', { class: 'bnb-fusion-hull', x, y, width, height, rx: 8 });
    hull.style.fillOpacity = String(0.05 + 0.3 * (share ?? 0));
    element.append(hull);
    if (group.kind === 'kernel') {
      const percent = share === null ? '' : `, ${(100 * share).toFixed(0)} %`;
      element.append(
        svg('text', { class: 'bnb-fusion-head', x: x + 8, y: y + 14 }, `${group.label}${percent}`),
      );
    }
    graph.nodes.forEach(([box, operator, label, nodeX, nodeY, nodeWidth]) => {
      if (box === i) {
        const [name, original, result, inputs, line] = graph.operators[operator];
        const made = original && original !== name ? ` (of ${original})` : '';
        const where = line ? `\n${line[0]}: ${line[2]}` : '';
        const title = `${name}${made} → ${result}\ninputs: ${inputs.join(', ') || 'none'}${where}`;
        element.append(
          svg(
            'g',
            { class: 'bnb-fusion-node' },
            svg('title', {}, title),
            svg('rect', { x: nodeX, y: nodeY, width: nodeWidth, height: NODE_HEIGHT, rx: 4 }),
            svg('text', { x: nodeX + nodeWidth / 2, y: nodeY + 14, 'text-anchor': 'middle' }, label),
          ),
        );
      }
    });
    const select = (): void => this.selection.selectGroup(this.shown, i);
    element.addEventListener('click', select);
    element.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' || event.key === ' ') {
        select();
        event.preventDefault();
      }
    });
    return element;
  }

  /** The share of the time of a box: that of its row, in equal parts for each box of the row. */
  private share(group: TorchGroup): number | null {
    const row = this.store.doc.torch!.rows[group.row];
    return row?.share == null ? null : row.share / Math.max(1, row.groups.length);
  }

  private describe(graph: TorchGraph, group: TorchGroup, i: number): string {
    const count = graph.nodes.filter(([box]) => box === i).length;
    const row = this.store.doc.torch!.rows[group.row];
    const took = row?.time ? `, ${time(row.time.median)}` : '';
    return group.kind === 'kernel'
      ? `${group.call || 'a kernel'}: ${count} operators${took}`
      : `${group.call}: an external call`;
  }

  /** Marks the selected boxes, and shows the first of them. */
  private follow(opensGraph = true): void {
    const first = this.selection.places[0];
    if (opensGraph && first && first.graph !== this.shown) {
      this.show(first.graph);
    }
    const here = this.selection.places.filter(({ graph }) => graph === this.shown).map(({ group }) => group);
    this.boxes.forEach((box, i) => {
      box.classList.toggle('bnb-fusion-selected', here.includes(i));
      box.setAttribute('aria-pressed', String(here.includes(i)));
    });
    this.drawPair(this.selection.row < 0 && here.length === 2 ? here : null);
    this.about.replaceChildren(...this.details(here));
    const scroll = this.place.firstElementChild;
    if (here.length && scroll && this.plot) {
      const [x, y] = this.graphs[this.shown].groups[here[0]].box;
      const scale = this.zoom;
      scroll.scrollTop = Math.max(0, y * scale - 40);
      scroll.scrollLeft = Math.max(0, x * scale - 40);
    }
  }

  private drawPair(pair: readonly number[] | null): void {
    const middles = (pair ?? []).map((i) => {
      const [x, y, width, height] = this.graphs[this.shown].groups[i].box;
      return `${(x + width / 2).toFixed(0)} ${(y + height / 2).toFixed(0)}`;
    });
    this.pair?.setAttribute('d', middles.length ? `M${middles[0]}L${middles[1]}` : '');
  }

  /** What the panel next to the picture says about the selected boxes. */
  private details(here: readonly number[]): HTMLElement[] {
    const graph = this.graphs[this.shown];
    if (!here.length) {
      const text =
        'Select a box to see its kernel, operators, shapes and lines. External calls run code of torch.';
      return [h('p.bnb-quiet', {}, text)];
    }
    return here.slice(0, 2).flatMap((i) => this.groupDetails(graph, i));
  }

  private groupDetails(graph: TorchGraph, i: number): HTMLElement[] {
    const group = graph.groups[i];
    const row = this.store.doc.torch!.rows[group.row];
    const found: HTMLElement[] = [h('p.bnb-fusion-name', {}, h('strong', {}, group.call || 'a kernel'))];
    if (row) {
      const facts = [
        row.time && time(row.time.median),
        row.share !== null && `${(100 * row.share).toFixed(1)} % of the time`,
        row.bytes !== null && `${digits(row.bytes / 1e3)} kB`,
      ];
      found.push(h('p', {}, `row ${group.row}: ${facts.filter(Boolean).join(', ')}`));
      const open = button('Open card', () => this.selection.openCard(group.row), {
        title: 'Open the card of this kernel in the Kernels view',
      });
      found.push(h('p', {}, open));
    } else if (group.kind === 'external') {
      found.push(
        h(
          'p.bnb-quiet',
          {},
          'An external call: Inductor fuses no generated code into it, and its time is not measured.',
        ),
      );
    } else {
      found.push(h('p.bnb-quiet', {}, 'This run has not launched this kernel.'));
    }
    const reasons = graph.unfused.filter(([a, b]) => a === i || b === i);
    if (reasons.length) {
      const items = reasons.map(([a, b, reason]) => {
        const other = a === i ? b : a;
        const name = nameOf(graph.groups[other]);
        const link = button(name, () => this.selection.selectPair(this.shown, [i, other]), {
          title: 'Show both kernels',
        });
        return h('li', {}, 'not fused with ', link, `: ${reason}`);
      });
      found.push(h('ul.bnb-fusion-reasons', {}, ...items));
    }
    found.push(...programLines(linesOf(graph, i)), operatorTable(graph, i));
    return found;
  }

  private step(by: number): void {
    const at = ZOOMS.findIndex((zoom) => zoom >= this.zoom - 1e-9);
    this.scale(ZOOMS[Math.min(ZOOMS.length - 1, Math.max(0, (at < 0 ? ZOOMS.length - 1 : at) + by))]);
  }

  private fit(): void {
    const scroll = this.place.firstElementChild as HTMLElement | null;
    const graph = this.graphs[this.shown];
    if (scroll && graph?.width) {
      const fits = Math.min(scroll.clientWidth / graph.width, scroll.clientHeight / graph.height, 1);
      this.scale(Math.max(0.1, fits));
    }
  }

  private scale(zoom: number): void {
    this.zoom = zoom;
    const graph = this.graphs[this.shown];
    this.plot?.setAttribute('width', (graph.width * zoom).toFixed(0));
    this.plot?.setAttribute('height', (graph.height * zoom).toFixed(0));
  }
}

/** The name of a box for a sentence. */
export function nameOf(group: TorchGroup): string {
  return group.label || group.call.replace(/^extern_kernels\./, '');
}

/** The edges. One between boxes that Inductor has refused to fuse is dashed and says why. */
function edges(graph: TorchGraph): SVGGElement[] {
  const reasons = new Map(graph.unfused.map(([a, b, reason]) => [`${a} ${b}`, reason]));
  return graph.edges.map(([start, end, d]) => {
    const [a, b] = [graph.nodes[start], graph.nodes[end]];
    const [from, to] = [graph.groups[a[0]], graph.groups[b[0]]];
    const reason =
      reasons.get(`${a[0]} ${b[0]}`) ??
      (from !== to && [from, to].some(({ kind }) => kind === 'external')
        ? 'an external call is not fused'
        : '');
    const refused = reasons.has(`${a[0]} ${b[0]}`);
    const result = graph.operators[a[1]][2];
    const title = `${a[2]} → ${b[2]}: ${result}${reason ? `\nnot fused: ${reason}` : ''}`;
    return svg(
      'g',
      { class: refused ? 'bnb-fusion-edge bnb-fusion-refused' : 'bnb-fusion-edge' },
      svg('title', {}, title),
      svg('path', { class: 'bnb-fusion-line', d }),
      svg('path', { class: 'bnb-fusion-hit', d }),
    );
  });
}

/** The boxes in the rows in which they stand, from left to right, for the arrow keys. */
function inRows(graph: TorchGraph, boxes: readonly SVGGElement[]): SVGGElement[][] {
  const order = graph.groups
    .map(({ box: [x, y, , height] }, i) => ({ x, middle: Math.round(y + height / 2), i }))
    .sort((a, b) => a.middle - b.middle || a.x - b.x);
  const rows: { middle: number; row: SVGGElement[] }[] = [];
  for (const { middle, i } of order) {
    const last = rows[rows.length - 1];
    if (last && Math.abs(last.middle - middle) <= 2) {
      last.row.push(boxes[i]);
    } else {
      rows.push({ middle, row: [boxes[i]] });
    }
  }
  return rows.map(({ row }) => row);
}

/** The lines of the operators in a box, each once. */
function linesOf(graph: TorchGraph, i: number): ProgramLine[] {
  const lines = graph.nodes.flatMap(([box, operator]) => {
    const line = graph.operators[operator][4];
    return box === i && line ? [[line[0], line] as const] : [];
  });
  return [...new Map(lines).values()];
}

function operatorTable(graph: TorchGraph, i: number): HTMLElement {
  const rows = graph.nodes
    .filter(([box]) => box === i)
    .map(([, operator]) => {
      const [name, original, result, , line] = graph.operators[operator];
      const made = original && original !== name ? h('small', {}, ` of ${original}`) : null;
      return h(
        'tr',
        {},
        h('th', { scope: 'row' }, name, made),
        h('td', {}, result),
        h('td', { title: line?.[2] }, line?.[0]),
      );
    });
  const head = ['operator', 'result', 'line'].map((text) => h('th', { scope: 'col' }, text));
  return h('table.bnb-table', {}, h('thead', {}, h('tr', {}, ...head)), h('tbody', {}, ...rows));
}
