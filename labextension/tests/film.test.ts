import { afterEach, describe, expect, test, vi } from 'vitest';

import type { Encoding, Film } from '../src/core/film/film';
import { encodeGif } from '../src/core/film/gif';
import { chosenSteps } from '../src/core/film/launch_film';
import { container, encodeWebm } from '../src/core/film/webm';
import type { ExportedLaunch } from '../src/core/film/launch_film';
import { exportControls, fileName, frameDelay } from '../src/core/views/launch_export';
import { random, until } from './fixtures';

/** A film of a red line that moves over noise of 16 shades. */
function line(count: number, side = 16): Film {
  const next = random(1);
  const noise = Uint8ClampedArray.from({ length: side * side * 4 }, () => 16 * next(16));
  noise.forEach((_, i) => (noise[i] = i % 4 === 3 ? 255 : noise[i - (i % 4)]));
  const pixels = new Uint8ClampedArray(side * side * 4);
  return {
    width: side,
    height: side,
    count,
    canvas: document.createElement('canvas'),
    draw(frame) {
      pixels.set(noise);
      for (let y = 4; y < 8; y++) {
        pixels.set([213, 94, 0, 255], 4 * (y * side + (frame % side)));
      }
    },
    pixels: () => pixels,
  };
}

function how(more: Partial<Encoding> = {}): Encoding {
  return { delay: 250, hold: 2000, signal: new AbortController().signal, progress: () => {}, ...more };
}

afterEach(() => vi.unstubAllGlobals());

/** Reads the blocks of a GIF: the size, the number of times that it repeats (0: for ever), and for each frame its delay in 10 ms. */
function blocksOf(gif: Uint8Array) {
  const view = new DataView(gif.buffer, gif.byteOffset, gif.byteLength);
  let at = 13 + 3 * 2 ** ((gif[10] & 7) + 1); // after the global colours
  const delays: number[] = [];
  let frames = 0;
  let repeats = -1;
  const skip = (): void => {
    while (gif[at]) {
      at += gif[at] + 1;
    }
    at += 1;
  };
  while (gif[at] !== 0x3b) {
    if (gif[at] === 0x21 && gif[at + 1] === 0xf9) {
      delays.push(view.getUint16(at + 4, true));
      at += 8;
    } else if (gif[at] === 0x21) {
      repeats = view.getUint16(at + 16, true);
      at += 2;
      skip();
    } else {
      expect(gif[at]).toBe(0x2c);
      expect(gif[at + 9] & 0x80).toBe(0); // no colours of its own
      frames += 1;
      at += 11;
      skip();
    }
  }
  expect(at).toBe(gif.length - 1);
  const size = [view.getUint16(6, true), view.getUint16(8, true)];
  return { head: String.fromCharCode(...gif.slice(0, 6)), size, repeats, frames, delays };
}

describe('a GIF', () => {
  test('has all frames with their delays, and repeats', async () => {
    const seen: number[] = [];
    const gif = await encodeGif(line(5), how({ progress: (done) => seen.push(done) }));
    expect(blocksOf(gif)).toEqual({
      head: 'GIF89a', size: [16, 16], repeats: 0, frames: 5, delays: [25, 25, 25, 25, 200],
    }); // prettier-ignore
    expect(seen).toEqual([1, 2, 3, 4, 5]);
  });

  test('is the same for the same film, and stays small where little moves', async () => {
    const [one, two] = [await encodeGif(line(8, 80), how()), await encodeGif(line(8, 80), how())];
    expect(one).toEqual(two);
    const still = await encodeGif(line(1, 80), how());
    expect(still.length).toBeGreaterThan(3000); // the noise does not compress
    expect(one.length).toBeLessThan(still.length * 1.6);
  });

  test('has the colours of narrow lines, also of a film of one frame', async () => {
    const film = line(1);
    const draw = film.draw.bind(film);
    for (let column = 0; column < 4; column++) {
      const gif = await encodeGif({ ...film, draw: () => draw(column) }, how());
      const colours = [...gif.slice(13, 13 + 3 * 2 ** ((gif[10] & 7) + 1))];
      const reddest = Math.max(...colours.map((red, i) => (i % 3 ? 0 : red - colours[i + 2])));
      expect(reddest, `column ${column}`).toBeGreaterThan(200);
    }
  });

  test('ends with the cancellation', async () => {
    const work = new AbortController();
    let frames = 0;
    const progress = (done: number): void => {
      frames = done;
      if (done === 3) {
        work.abort();
      }
    };
    await expect(encodeGif(line(50), how({ signal: work.signal, progress }))).rejects.toThrow(/abort/i);
    expect(frames).toBe(3);
  });
});

test('a long launch is thinned out in even steps, with its first and its last one', () => {
  expect(chosenSteps(5)).toEqual([0, 1, 2, 3, 4]);
  expect(chosenSteps(1)).toEqual([0]);
  expect(chosenSteps(10, 4)).toEqual([0, 3, 6, 9]);
  const many = chosenSteps(10_001);
  expect([many.length <= 600, many[0], many[many.length - 1]]).toEqual([true, 0, 10_000]);
  expect(new Set(many.slice(1, -1).map((step, i) => step - many[i])).size).toBe(1);
});

test('a WebM has its frames in clusters that begin with a key frame', () => {
  const data = new Uint8Array([7, 8, 9]);
  const chunks = [0, 250, 5000, 5250].map((time) => ({ key: time % 5000 === 0, time, data }));
  const file = container('V_VP9', { width: 320, height: 200 }, chunks, 7250);
  const text = [...file].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  expect(text.startsWith('1a45dfa3')).toBe(true);
  expect(text.split('1f43b675')).toHaveLength(3);
  expect(text.split('a3010000000000000781')).toHaveLength(5); // SimpleBlocks of track 1
  expect(text).toContain('00fa00070809'); // the second one: 250 ms after the first, no key frame
  const at = text.indexOf('18538067') / 2; // the segment, which has its length
  expect(new DataView(file.buffer).getUint32(at + 8)).toBe(file.length - at - 12);
});

test('a failure of the video encoder is the error of the export, not what follows from it', async () => {
  const close = vi.fn();
  class Broken {
    static isConfigSupported = async () => ({ supported: true });
    state = 'configured';
    encodeQueueSize = 0;
    close = close;
    constructor(private readonly how: VideoEncoderInit) {}
    configure(): void {}
    encode(): void {
      this.state = 'closed';
      this.how.error(new DOMException('no memory on the video card'));
    }
    flush = () => Promise.reject(new DOMException('the codec is closed'));
  }
  vi.stubGlobal('VideoEncoder', Broken);
  vi.stubGlobal('VideoFrame', class { close(): void {} }); // prettier-ignore
  await expect(encodeWebm(line(3), how())).rejects.toThrow('no memory on the video card');
  expect(close).not.toHaveBeenCalled();
});

test('a GIF has at most 50 steps per second, and a video the chosen ones', () => {
  expect([1, 4, 60].map((speed) => frameDelay('gif', speed))).toEqual([1000, 250, 20]);
  expect(frameDelay('webm', 60)).toBe(1000 / 60);
});

test.each([true, false])('the end of an export moves the focus only from Cancel (%s)', async (stays) => {
  const broken = new Proxy({} as ExportedLaunch, {
    get() {
      throw new Error('no launch');
    },
  });
  const { form } = exportControls(() => broken);
  form.hidden = false;
  const other = document.createElement('button');
  document.body.replaceChildren(form, other);
  const [save, cancel] = form.querySelectorAll('button');
  save.focus();
  save.click();
  expect(document.activeElement).toBe(cancel);
  if (!stays) {
    other.focus();
  }
  await until(() => form.textContent!.includes('The export failed: no launch'));
  expect(document.activeElement).toBe(stays ? save : other);
});

test('the name of the file says what it shows', () => {
  expect(fileName({ kernel: 'a b/<c>', unit: 'wave' }, 'gif')).toBe('a_b_c__launch_by_wave.gif');
});
