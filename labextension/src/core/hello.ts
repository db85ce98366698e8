/**
 * The handshake that tells a kernel which blocknb extension the page has loaded. The kernel opens a comm on `HELLO_TARGET`. The page
 * answers with one announcement. A page without the extension closes the comm. This module does not depend on Jupyter, so tests and
 * other hosts can use it.
 */

import { SCHEMA } from './schema';

/** The comm target of the handshake. */
export const HELLO_TARGET = 'blocknb.hello';

/** The version of this extension. A test compares it with package.json. */
export const VERSION = '0.2.0';

/** The newest document schema that this extension can read. Every document states its own schema. */
export { SCHEMA };

/** The page's answer to the handshake. */
export interface Announcement {
  extension: 'blocknb';
  version: string;
  schema: number;
}

/** Returns the page's answer to the handshake. */
export function announce(): Announcement {
  return { extension: 'blocknb', version: VERSION, schema: SCHEMA };
}
