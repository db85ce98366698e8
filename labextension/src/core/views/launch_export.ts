/** The controls that save the Launch view as an animation: the format, the size, progress and Cancel. */

import { button, h } from '../dom';
import type { Encoding, Film } from '../film/film';
import type { ExportedLaunch } from '../film/launch_film';
import { downloadBlob } from '../plot/export';

/** The formats: media type, and how to encode. The encoders are loaded when they are used. */
const FORMATS = {
  gif: {
    title: 'GIF',
    type: 'image/gif',
    encode: async (film: Film, how: Encoding) => (await import('../film/gif')).encodeGif(film, how),
  },
  webm: {
    title: 'WebM video',
    type: 'video/webm',
    encode: async (film: Film, how: Encoding) => (await import('../film/webm')).encodeWebm(film, how),
  },
} as const;

/** Pixels of the animation per CSS pixel of the view. */
const SIZES = [
  [1, 'small'],
  [2, 'medium'],
  [3, 'large'],
] as const;

const LEAST_GIF_DELAY = 20; // ms; browsers slow down a GIF with shorter ones
const HOLD = 2000; // ms of the last frame

/** The button in the tools of the view, and the form that it opens. */
export interface ExportControls {
  open: HTMLButtonElement;
  form: HTMLElement;
  /** Ends an export that runs. */
  cancel(): void;
}

/** Creates the controls. `get` returns what to show, or null if there is nothing. */
export function exportControls(get: () => ExportedLaunch | null): ExportControls {
  const format = h('select.bnb-select', {
    'aria-label': 'Format',
    title: 'GIF for slides, video for long launches',
  });
  const formats = (Object.keys(FORMATS) as (keyof typeof FORMATS)[]).filter(
    (key) => key === 'gif' || typeof VideoEncoder !== 'undefined',
  );
  format.append(...formats.map((key) => h('option', { value: key }, FORMATS[key].title)));
  const size = h('select.bnb-select', { 'aria-label': 'Size', title: 'Pixels of the animation' });
  size.append(...SIZES.map(([scale, name]) => h('option', { value: scale, selected: scale === 2 }, name)));
  const bar = h('progress.bnb-export-progress', { 'aria-label': 'Frames that are encoded', hidden: true });
  const said = h('span.bnb-quiet', { role: 'status' });
  let running: AbortController | null = null;

  const save = button('Save', () => void run(), { title: 'Save all steps as one file' });
  const cancel = button('Cancel', () => running?.abort(), { hidden: true, title: 'End the export' });
  const form = h(
    'div.bnb-tools.bnb-export',
    { role: 'group', 'aria-label': 'Export as an animation', hidden: true },
    h('label', {}, 'format ', format),
    h('label', {}, 'size ', size),
    save,
    cancel,
    bar,
    said,
  );
  const open = button(
    'Export',
    () => {
      form.hidden = !form.hidden;
      open.setAttribute('aria-expanded', String(!form.hidden));
    },
    { 'aria-expanded': 'false', title: 'Save the launch as an animation', 'data-tool': 'export' },
  );

  function show(work: AbortController | null): void {
    running = work;
    save.hidden = work !== null;
    bar.hidden = cancel.hidden = work === null;
    format.disabled = size.disabled = work !== null;
  }

  async function run(): Promise<void> {
    const shown = get();
    if (!shown) {
      return;
    }
    const work = new AbortController();
    const focused = form.contains(document.activeElement);
    show(work);
    if (focused) {
      cancel.focus();
    }
    try {
      const key = format.value as keyof typeof FORMATS;
      said.textContent = await saveFilm(shown, key, Number(size.value), work.signal, (done, of) => {
        bar.max = of;
        bar.value = done;
        said.textContent = `frame ${done} of ${of}`;
      });
    } catch (error) {
      said.textContent = work.signal.aborted
        ? 'Cancelled.'
        : `The export failed: ${(error as Error).message}`;
    } finally {
      const inside = form.contains(document.activeElement);
      show(null);
      if (inside) {
        save.focus();
      }
    }
  }

  return { open, form, cancel: () => running?.abort() };
}

/** Returns the milliseconds of a frame for a speed in steps per second. */
export function frameDelay(key: keyof typeof FORMATS, speed: number): number {
  return key === 'gif' ? Math.max(LEAST_GIF_DELAY, Math.round(1000 / speed)) : 1000 / speed;
}

/** Encodes and saves a launch. Returns a sentence about the file. */
async function saveFilm(
  shown: ExportedLaunch,
  key: keyof typeof FORMATS,
  scale: number,
  signal: AbortSignal,
  progress: (done: number, of: number) => void,
): Promise<string> {
  const { LaunchFilm } = await import('../film/launch_film');
  const film = new LaunchFilm(shown, scale);
  const { type, encode } = FORMATS[key];
  const delay = frameDelay(key, shown.speed);
  const bytes = await encode(film, {
    delay,
    hold: Math.max(HOLD, delay),
    signal,
    progress: (done) => progress(done, film.count),
  });
  const name = fileName(shown, key);
  downloadBlob(name, new Blob([bytes], { type }));
  const last = film.steps[film.steps.length - 1] + 1;
  const thinned = film.count < last ? `, 1 of ${film.steps[1]} steps` : '';
  const megabytes = (bytes.length / 1e6).toFixed(bytes.length < 1e6 ? 2 : 1);
  return `${name}: ${film.count} frames${thinned}, ${film.width} × ${film.height} pixels, ${megabytes} MB.`;
}

/** Returns the name of the file: `matmul_launch_by_program.gif`. */
export function fileName({ kernel, unit }: Pick<ExportedLaunch, 'kernel' | 'unit'>, key: string): string {
  return `${kernel.replace(/[^\w.-]+/g, '_')}_launch_by_${unit}.${key}`;
}
