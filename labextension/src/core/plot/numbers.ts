/** Formats numbers with units, in the same way as blocknb/notebook/numbers.py. */

import type { Ratio, Rate, Time } from '../schema';

/** Formats a number with three significant digits, or with all digits of a larger integer part. */
export function digits(value: number): string {
  if (!Number.isFinite(value)) {
    return String(value);
  }
  if (Math.abs(value) >= 100) {
    return value.toFixed(0);
  }
  const text = value.toPrecision(3);
  return text.includes('e') ? String(Number(text)) : text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

/** Formats milliseconds in a suitable unit. */
export function time(milliseconds: number): string {
  if (milliseconds < 1e-3) {
    return `${digits(milliseconds * 1e6)} ns`;
  }
  if (milliseconds < 1) {
    return `${digits(milliseconds * 1e3)} µs`;
  }
  return milliseconds < 1e4 ? `${digits(milliseconds)} ms` : `${digits(milliseconds / 1e3)} s`;
}

/** Formats a time with what it is: "25.1 µs (median of 30, warm, 24.8 µs to 25.6 µs, CPU)", or "985 µs (1 launch, cold, CPU)". */
export function timing(found: Time): string {
  const parts = [
    found.n === 1 ? '1 launch' : found.n > 1 ? `median of ${found.n}` : '',
    found.cold === null ? '' : found.cold ? 'cold' : 'warm',
    found.n === 1 || found.low === found.high ? '' : `${time(found.low)} to ${time(found.high)}`,
    found.device,
  ].filter(Boolean);
  return parts.length ? `${time(found.median)} (${parts.join(', ')})` : time(found.median);
}

/** Formats a ratio of times with its interval: "0.77× (0.71 to 0.82)", or "within noise: ...". */
export function ratio({ value, low, high, pairs, verdict }: Ratio): string {
  const text = `${value.toFixed(2)}×`;
  if (low === null || high === null) {
    return `${text} (too few runs: ${pairs})`;
  }
  return `${verdict === 'noise' ? 'within noise: ' : ''}${text} (${low.toFixed(2)} to ${high.toFixed(2)})`;
}

/** Formats a span of seconds in its largest unit. */
export function age(seconds: number): string {
  for (const [unit, length] of AGES) {
    const count = Math.floor(seconds / length);
    if (count >= 1) {
      return unit === 'day' ? `${count} day${count > 1 ? 's' : ''}` : `${count} ${unit}`;
    }
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

const AGES: readonly [string, number][] = [
  ['day', 86400],
  ['h', 3600],
  ['min', 60],
];

/** Formats a rate in GB/s or TFLOP/s. Below 1 TFLOP/s it uses GFLOP/s. */
export function rate({ value, unit }: Rate): string {
  return unit === 'TFLOP/s' && value < 1 ? `${digits(value * 1e3)} GFLOP/s` : `${digits(value)} ${unit}`;
}

/** Formats an integer with thousands separators. null is unknown. */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? 'unknown' : value.toLocaleString('en-US');
}

/** Formats bytes in binary units. */
export function size(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  const unit = units.findIndex((_, i) => bytes < 1024 ** (i + 1) || i === units.length - 1);
  return `${digits(bytes / 1024 ** unit)} ${units[unit]}`;
}

/** Formats a tick label. Powers are short: 0.01, 100, 1e6, 64 Ki. */
export function tick(value: number, base: 2 | 10): string {
  if (base === 2) {
    const at = Math.round(Math.log2(value));
    const units = ['', ' Ki', ' Mi', ' Gi', ' Ti'];
    return at >= 10 && 2 ** at === value
      ? `${2 ** (at % 10)}${units[Math.min(4, Math.floor(at / 10))]}`
      : String(value);
  }
  return value >= 1e-3 && value < 1e4
    ? String(Number(value.toPrecision(3)))
    : value.toExponential(0).replace('e+', 'e');
}
