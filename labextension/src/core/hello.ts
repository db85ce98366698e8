/**
 * How a kernel learns which blocknb extension a page has really loaded. The kernel opens a comm on `HELLO_TARGET` and
 * the page answers with one announcement; a page without the extension closes the comm, which is an answer too.
 * Nothing here knows Jupyter, so the protocol can be tested alone and spoken by any other host.
 */

import { SCHEMA } from './schema';

/** The comm target on which the kernel asks. */
export const HELLO_TARGET = 'blocknb.hello';

/** This extension's version: the one in package.json (a test keeps the two equal). */
export const VERSION = '0.1.0';

/** The newest document schema this extension understands; every document the kernel writes states its own. */
export { SCHEMA };

export interface Announcement {
  extension: 'blocknb';
  version: string;
  schema: number;
}

/** The page's whole answer. */
export function announce(): Announcement {
  return { extension: 'blocknb', version: VERSION, schema: SCHEMA };
}
