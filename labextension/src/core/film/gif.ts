/**
 * Encodes a film as an animated GIF (GIF89a) by gifenc. All frames share one table of up to 255 colours, which come from frames spread over
 * the film. A pixel that does not change is transparent, so a long animation of small changes stays small. The same film gives the same
 * bytes.
 */

import { applyPalette, GIFEncoder, quantize } from 'gifenc';

import { Breather, type Encoding, type Film } from './film';

const SAMPLES = 6; // frames that the colours come from
const SPARSE = 4; // all pixels of six frames of the large size would need 140 MB
const COLOURS = 255; // one of the 256 entries is transparent
const FORMAT = 'rgb565';

/** Returns the bytes of a film as a GIF that repeats for ever. Rejects with an AbortError after a cancellation. */
export async function encodeGif(film: Film, how: Encoding): Promise<Uint8Array<ArrayBuffer>> {
  const breather = new Breather(how.signal);
  const palette = await colours(film, breather);
  const none = palette.length;
  const table = [...palette, [0, 0, 0]];
  const encoder = GIFEncoder();
  let before: Uint8Array | null = null;
  for (let frame = 0; frame < film.count; frame++) {
    film.draw(frame);
    const now: Uint8Array = applyPalette(film.pixels(), palette, FORMAT);
    const last = frame === film.count - 1;
    encoder.writeFrame(before ? changed(before, now, none) : now, film.width, film.height, {
      ...(!before && { palette: table }),
      delay: last ? how.hold : how.delay,
      transparent: true,
      transparentIndex: none,
      dispose: 1, // the next frame is drawn over this one
    });
    before = now;
    how.progress(frame + 1);
    await breather.breathe();
  }
  encoder.finish();
  return encoder.bytes();
}

/** Returns a frame in which the pixels that equal those of the frame before have the colour `none`. */
function changed(before: Uint8Array, now: Uint8Array, none: number): Uint8Array {
  const found = new Uint8Array(now.length);
  for (let i = 0; i < now.length; i++) {
    found[i] = now[i] === before[i] ? none : now[i];
  }
  return found;
}

/** Returns the common colours of a film. Of each sampled frame it takes every fourth pixel, others than in the frame before. */
async function colours(film: Film, breather: Breather): Promise<number[][]> {
  const samples = Math.min(SAMPLES, film.count);
  const each = Math.ceil((film.width * film.height) / SPARSE);
  const all = new Uint32Array(samples * each); // a pixel is a number
  for (let i = 0; i < samples; i++) {
    film.draw(samples > 1 ? Math.round((i * (film.count - 1)) / (samples - 1)) : 0);
    const { buffer, byteOffset, length } = film.pixels();
    const pixels = new Uint32Array(buffer, byteOffset, length / 4);
    for (let k = 0; k < each; k++) {
      const shift = (i + Math.floor((k * SPARSE) / film.width)) % SPARSE; // other columns in each row
      all[i * each + k] = pixels[Math.min(k * SPARSE + shift, pixels.length - 1)];
    }
    await breather.breathe();
  }
  return quantize(new Uint8Array(all.buffer), COLOURS, { format: FORMAT });
}
