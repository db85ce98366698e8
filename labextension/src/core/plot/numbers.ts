/** Formats numbers with units, in the same way as blocknb/notebook/numbers.py. */

import type { Rate } from '../schema';

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
