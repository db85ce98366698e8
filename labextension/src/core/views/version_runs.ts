/** The lower part of the History view: a plot of the versions' times, and a table of all runs (cells, knobs, autotuners). */

import { scaleLinear } from 'd3-scale';
import { line, symbolCircle, symbolTriangle } from 'd3-shape';

import { h, svg } from '../dom';
import { saveButtons } from '../plot/export';
import { EDGE, explore, frame, HEIGHT, mark, WIDTH } from '../plot/frame';
import { digits, time, timing } from '../plot/numbers';
import { type Cell, plottedTimes } from '../plot/series';
import { table } from '../plot/table';
import type { Document, Version, VersionRun } from '../schema';

const WHAT: Readonly<Record<string, string>> = {
  cell: 'cell',
  knobs: 'changed knobs',
  autotune: 'autotuner',
};

/** Returns the plot and the table; nothing for a document with a single version and a single run. */
export function versionRuns(doc: Document): HTMLElement[] {
  const versions = doc.history?.versions ?? [];
  const runs = doc.history?.runs ?? [];
  const timed = versions.filter((v) => v.time);
  const status = h('p.bnb-quiet.bnb-description', { 'aria-live': 'polite' });
  const describe = (text: string): void => void (status.textContent = text);
  const plot = timed.length > 1 ? versionPlot(timed, describe) : null;
  if (!plot && runs.length < 2) {
    return [];
  }
  const buttons = saveButtons(
    `${doc.kernel}-history`,
    () => plot,
    () => runRecords(runs),
  ).filter((_, i) => plot || i > 0);
  const found: HTMLElement[] = [h('div.bnb-tools', {}, ...buttons)];
  if (plot) {
    found.push(h('div.bnb-plot-place', {}, plot), status);
  }
  if (runs.length) {
    found.push(
      h(
        'details.bnb-runs',
        {},
        h('summary', { title: 'Show or hide the runs' }, `${runs.length} runs`),
        runTable(runs),
      ),
    );
  }
  return found;
}

/** Draws the time of each version, with its interquartile range; a wrong version is a triangle. */
function versionPlot(versions: readonly Version[], onDescribe: (text: string) => void): SVGSVGElement {
  const shown = plottedTimes(versions.map((v) => [String(v.number), v.time] as const));
  const most = Math.max(...shown.series.flatMap((s) => [s.median[0] ?? 0, s.high[0] ?? 0]));
  const y = scaleLinear([0, most * 1.08 || 1], [HEIGHT - EDGE.bottom, EDGE.top]);
  const at = (i: number): number =>
    EDGE.left + ((WIDTH - EDGE.left - EDGE.right) * (i + 0.5)) / versions.length;
  const plot = frame(
    'Times of the versions',
    { title: 'version', ticks: versions.map((v, i) => ({ at: at(i), label: String(v.number) })) },
    {
      title: `time (${shown.unit})`,
      ticks: y.ticks(6).map((v) => ({ at: y(v), label: digits(v) })),
    },
  );
  const value = (i: number, column: 'median' | 'low' | 'high'): number => y(shown.series[i][column][0] ?? 0);
  const path = line<number>(at, (i) => value(i, 'median'));
  plot.area.append(svg('path', { class: 'bnb-line bnb-series-0', d: path(versions.map((_, i) => i)) }));
  const marks = versions.map((version, i) => {
    const [low, high] = [value(i, 'low'), value(i, 'high')];
    plot.area.append(svg('line', { class: 'bnb-plot-whisker', x1: at(i), x2: at(i), y1: low, y2: high }));
    const wrong = version.ok === false;
    const text = `version ${version.number}${wrong ? ', ✗ wrong' : ''}: ${timing(version.time!)}`;
    const look = wrong ? 'bnb-series-1' : 'bnb-series-0';
    return mark(wrong ? symbolTriangle : symbolCircle, at(i), value(i, 'median'), look, text);
  });
  plot.area.append(...marks);
  explore([marks], onDescribe);
  return plot.element;
}

function runTable(runs: readonly VersionRun[]): HTMLElement {
  const rows = [...runs]
    .reverse()
    .map((run) => [
      String(run.version),
      WHAT[run.what] ?? run.what,
      run.settings,
      run.time ? time(run.time.median) : 'not timed',
      run.time ? timing(run.time) : '',
      run.verdict,
      run.when.replace('T', ' ').replace(/\+.*$/, ' UTC'),
    ]);
  const head = ['version', 'run of', 'settings', 'median', 'time', 'verdict', 'when'];
  return table('Runs, the newest first, with those of earlier sessions of this notebook', head, rows);
}

/** Returns the runs with their head, as `to_csv` in Python writes them. */
export function runRecords(runs: readonly VersionRun[]): Cell[][] {
  const head = ['version', 'what', 'settings', 'when', 'ms', 'ms_low', 'ms_high', 'n', 'verdict', 'device'];
  const rows = runs.map(({ version, what, settings, when, time: t, verdict }): Cell[] => [
    version,
    what,
    settings,
    when,
    ...[t?.median, t?.low, t?.high, t?.n].map((v) => v ?? null),
    verdict,
    t?.device ?? '',
  ]);
  return [head, ...rows];
}
