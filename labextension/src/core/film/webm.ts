/**
 * Encodes a film as a WebM video by WebCodecs, where the browser has it. WebCodecs makes the frames of VP9 or VP8; this module writes the
 * container: EBML elements (RFC 8794) of Matroska (RFC 9559) that WebM permits. All frames have their exact times, and the encoding does
 * not take as long as the film.
 */

import { Breather, type Encoding, type Film } from './film';

const CODECS = [
  ['vp09.00.50.08', 'V_VP9'],
  ['vp8', 'V_VP8'],
] as const;

/** Milliseconds of a cluster at most. The time of a frame in its cluster has 16 bits. */
const CLUSTER_MS = 5000;

interface Chunk {
  key: boolean;
  /** Milliseconds from the beginning. */
  time: number;
  data: Uint8Array;
}

function config(codec: string, { width, height }: Film, delay: number): VideoEncoderConfig {
  const pixels = (width * height * 1000) / delay;
  return { codec, width, height, framerate: 1000 / delay, bitrate: Math.round(1e6 + pixels / 4) };
}

/** Returns the codec that this browser encodes a film with, or null. */
async function codecFor(film: Film, delay: number): Promise<(typeof CODECS)[number] | null> {
  for (const one of CODECS) {
    if ((await VideoEncoder.isConfigSupported(config(one[0], film, delay))).supported) {
      return one;
    }
  }
  return null;
}

/** Returns the bytes of a film as a WebM video. Rejects if the browser cannot encode it, and with an AbortError after a cancellation. */
export async function encodeWebm(film: Film, how: Encoding): Promise<Uint8Array<ArrayBuffer>> {
  const codec = await codecFor(film, how.delay);
  if (!codec) {
    throw new Error('This browser has no encoder for videos of this size. Choose GIF.');
  }
  const chunks: Chunk[] = [];
  const failed: Error[] = [];
  const encoder = new VideoEncoder({
    output: (chunk) => {
      const data = new Uint8Array(chunk.byteLength);
      chunk.copyTo(data);
      chunks.push({ key: chunk.type === 'key', time: Math.round(chunk.timestamp / 1000), data });
    },
    error: (error) => failed.push(error),
  });
  encoder.configure(config(codec[0], film, how.delay));
  try {
    const end = await encodeFrames(film, how, encoder, failed);
    await encoder.flush();
    if (failed.length) {
      throw failed[0];
    }
    return container(codec[1], film, chunks, end);
  } catch (error) {
    throw failed[0] ?? error; // an encoder that has failed is closed, and refuses further frames
  } finally {
    if (encoder.state !== 'closed') {
      encoder.close();
    }
  }
}

/** Passes all frames to the encoder. Returns the length of the film in milliseconds. */
async function encodeFrames(
  film: Film,
  how: Encoding,
  encoder: VideoEncoder,
  failed: readonly Error[],
): Promise<number> {
  const breather = new Breather(how.signal);
  let keyTime = -Infinity;
  const encode = (time: number): void => {
    const keyFrame = time - keyTime >= CLUSTER_MS;
    keyTime = keyFrame ? time : keyTime;
    const picture = new VideoFrame(film.canvas, { timestamp: Math.round(time * 1000) });
    encoder.encode(picture, { keyFrame });
    picture.close();
  };
  for (let frame = 0; frame < film.count && !failed.length; frame++) {
    film.draw(frame);
    encode(frame * how.delay);
    how.progress(frame + 1);
    while (encoder.encodeQueueSize > 4 && !failed.length) {
      await new Promise((resolve) => setTimeout(resolve, 5));
      how.signal.throwIfAborted();
    }
    await breather.breathe();
  }
  const end = (film.count - 1) * how.delay + how.hold;
  if (!failed.length && how.hold > how.delay) {
    encode(end - how.delay); // the last picture once more, so that players hold it
  }
  return end;
}

// ---- the container

type Bytes = readonly number[] | Uint8Array;

/** Returns an element: its id, the length of its content in eight bytes, and the content. */
function element(id: readonly number[], ...parts: Bytes[]): Uint8Array<ArrayBuffer> {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const found = new Uint8Array(id.length + 8 + length);
  found.set(id);
  const view = new DataView(found.buffer, id.length);
  view.setUint32(0, 0x01000000); // eight bytes of length; no film has 4 GiB
  view.setUint32(4, length);
  let at = id.length + 8;
  for (const part of parts) {
    found.set(part, at);
    at += part.length;
  }
  return found;
}

function unsigned(value: number): Uint8Array {
  const found = new Uint8Array(4);
  new DataView(found.buffer).setUint32(0, value);
  return found;
}

function float(value: number): Uint8Array {
  const found = new Uint8Array(8);
  new DataView(found.buffer).setFloat64(0, value);
  return found;
}

const ascii = (text: string): number[] => [...text].map((c) => c.charCodeAt(0));

/** Returns a WebM file. Each cluster begins with a key frame. */
export function container(
  codec: string,
  { width, height }: Pick<Film, 'width' | 'height'>,
  chunks: readonly Chunk[],
  end: number,
): Uint8Array<ArrayBuffer> {
  const head = element(
    [0x1a, 0x45, 0xdf, 0xa3],
    element([0x42, 0x86], [1]), // EBMLVersion
    element([0x42, 0xf7], [1]), // EBMLReadVersion
    element([0x42, 0xf2], [4]), // EBMLMaxIDLength
    element([0x42, 0xf3], [8]), // EBMLMaxSizeLength
    element([0x42, 0x82], ascii('webm')), // DocType
    element([0x42, 0x87], [4]), // DocTypeVersion
    element([0x42, 0x85], [2]), // DocTypeReadVersion
  );
  const information = element(
    [0x15, 0x49, 0xa9, 0x66],
    element([0x2a, 0xd7, 0xb1], unsigned(1_000_000)), // TimestampScale: milliseconds
    element([0x44, 0x89], float(end)), // Duration
    element([0x4d, 0x80], ascii('blocknb')), // MuxingApp
    element([0x57, 0x41], ascii('blocknb')), // WritingApp
  );
  const video = element([0xe0], element([0xb0], unsigned(width)), element([0xba], unsigned(height)));
  const track = element(
    [0xae],
    element([0xd7], [1]), // TrackNumber
    element([0x73, 0xc5], [1]), // TrackUID
    element([0x83], [1]), // TrackType: video
    element([0x86], ascii(codec)), // CodecID
    video,
  );
  const tracks = element([0x16, 0x54, 0xae, 0x6b], track);
  const segment = element([0x18, 0x53, 0x80, 0x67], information, tracks, ...clusters(chunks));
  const found = new Uint8Array(head.length + segment.length);
  found.set(head);
  found.set(segment, head.length);
  return found;
}

function clusters(chunks: readonly Chunk[]): Uint8Array[] {
  const groups: Chunk[][] = [];
  for (const chunk of chunks) {
    if (chunk.key || !groups.length) {
      groups.push([]);
    }
    groups[groups.length - 1].push(chunk);
  }
  return groups.map((group) => {
    const start = group[0].time;
    const blocks = group.map(({ key, time, data }) => {
      const at = time - start;
      return element([0xa3], [0x81, at >> 8, at & 0xff, key ? 0x80 : 0], data); // SimpleBlock of track 1
    });
    return element([0x1f, 0x43, 0xb6, 0x75], element([0xe7], unsigned(start)), ...blocks);
  });
}
