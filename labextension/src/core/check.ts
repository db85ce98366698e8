/**
 * Checks of untrusted JSON: a value is a text, a number, a list of these, and so on, within limits.
 *
 * A notebook of a stranger may contain any JSON. A check throws Invalid with the path of the first part that it rejects. Unknown keys of
 * an object pass, so that a newer kernel can add some. Nothing reads them.
 */

/** A value that is not what the page reads. The message begins with its path. */
export class Invalid extends Error {}

/** Throws Invalid unless the value is as expected. */
export type Check = (value: unknown, path: string) => void;

function reject(path: string, expected: string): never {
  throw new Invalid(`${path} is not ${expected}`);
}

/** A string of at most `most` characters. */
export function text(most = 1 << 20): Check {
  return (value, path) => {
    if (typeof value !== 'string' || value.length > most) {
      reject(path, `a text of at most ${most} characters`);
    }
  };
}

/** A finite number from `low` to `high`. */
export function number(low = -Number.MAX_VALUE, high = Number.MAX_VALUE): Check {
  return (value, path) => {
    if (typeof value !== 'number' || !(value >= low && value <= high)) {
      reject(path, `a number from ${low} to ${high}`);
    }
  };
}

/** An integer from `low` to `high`. */
export function integer(low = -Number.MAX_SAFE_INTEGER, high = Number.MAX_SAFE_INTEGER): Check {
  return (value, path) => {
    if (!Number.isInteger(value) || !((value as number) >= low && (value as number) <= high)) {
      reject(path, `an integer from ${low} to ${high}`);
    }
  };
}

/** true or false. */
export const flag: Check = (value, path) => {
  if (typeof value !== 'boolean') {
    reject(path, 'true or false');
  }
};

/** One of these values. */
export function oneOf(...values: readonly unknown[]): Check {
  return (value, path) => {
    if (!values.includes(value)) {
      reject(path, `one of ${values.join(', ')}`);
    }
  };
}

/** null, or what the check accepts. */
export function nullable(check: Check): Check {
  return (value, path) => (value === null ? undefined : check(value, path));
}

/** What one of the checks accepts. */
export function either(...checks: readonly Check[]): Check {
  return (value, path) => {
    const passes = checks.some((check) => {
      try {
        check(value, path);
        return true;
      } catch {
        return false;
      }
    });
    if (!passes) {
      reject(path, 'of a known type');
    }
  };
}

/** A list of at most `most` elements. */
export function list(element: Check, most = 100_000, least = 0): Check {
  return (value, path) => {
    if (!Array.isArray(value) || value.length > most || value.length < least) {
      reject(path, `a list of ${least} to ${most} elements`);
    }
    const found = value as unknown[];
    let at = 0;
    try {
      for (; at < found.length; at++) {
        element(found[at], path);
      }
    } catch (error) {
      if (!(error instanceof Invalid)) {
        throw error;
      }
      // The message begins with the path of the list: a path for each element would take most of the time of a check.
      throw new Invalid(`${path}[${at}]${error.message.slice(path.length)}`);
    }
  };
}

/** A list with one element for each check. */
export function tuple(...checks: readonly Check[]): Check {
  return (value, path) => {
    if (!Array.isArray(value) || value.length !== checks.length) {
      reject(path, `a list of ${checks.length} elements`);
    }
    checks.forEach((check, i) => check((value as unknown[])[i], `${path}[${i}]`));
  };
}

function has(value: object, key: string): boolean {
  return Object.prototype.hasOwnProperty.call(value, key);
}

/** An object with these keys; those of `optional` may be missing. */
export function object(required: Record<string, Check>, optional: Record<string, Check> = {}): Check {
  return (value, path) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      reject(path, 'an object');
    }
    const found = value as Record<string, unknown>;
    for (const [key, check] of Object.entries(required)) {
      check(has(found, key) ? found[key] : undefined, `${path}.${key}`);
    }
    for (const [key, check] of Object.entries(optional)) {
      if (has(found, key)) {
        check(found[key], `${path}.${key}`);
      }
    }
  };
}

/** An object whose keys match a pattern, with at most `most` of them. */
export function record(value: Check, key = /^/, most = 10_000): Check {
  return (given, path) => {
    if (typeof given !== 'object' || given === null || Array.isArray(given)) {
      reject(path, 'an object');
    }
    const entries = Object.entries(given as Record<string, unknown>);
    if (entries.length > most || !entries.every(([name]) => key.test(name) && !(name in Object.prototype))) {
      reject(path, `an object of at most ${most} keys of the form ${key.source}`);
    }
    entries.forEach(([name, one]) => value(one, `${path}.${name.slice(0, 40)}`));
  };
}

/** What all checks accept. */
export function all(...checks: readonly Check[]): Check {
  return (value, path) => checks.forEach((check) => check(value, path));
}

/** Throws Invalid unless the condition holds. Use it after a check of the types. */
export function holds<T>(condition: (value: T) => boolean, expected: string): Check {
  return (value, path) => {
    if (!condition(value as T)) {
      reject(path, expected);
    }
  };
}

type OptionalKeys<T> = { [K in keyof T]-?: object extends Pick<T, K> ? K : never }[keyof T];
type RequiredKeys<T> = Exclude<keyof T, OptionalKeys<T>>;

/** An object of the type T. The compiler demands a check of each field, so that a new field cannot be forgotten. */
export function shaped<T>(
  required: Record<RequiredKeys<T>, Check>,
  ...optional: [OptionalKeys<T>] extends [never] ? [] : [Record<OptionalKeys<T>, Check>]
): Check {
  return object(required as Record<string, Check>, (optional[0] ?? {}) as Record<string, Check>);
}

/** A short text. */
export const word = text(4096);

/** Texts by name. */
export const words = record(text(1 << 16), /^/, 1000);

/** How many of something there are. */
export const count = integer(0);

/** The number of a source line, or -1. */
export const line = integer(-1, 1e7);
