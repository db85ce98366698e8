/**
 * Drives a browser for `browser.py`. Each line on standard input is a request, and each line on standard output is its answer. Requests
 * contain functions as text, which run in the page. The driver records the errors on the console of each page.
 *
 *     node driver.mjs /usr/bin/chromium
 */

import { createInterface } from 'node:readline';

import { chromium } from 'playwright-core';

const browser = await chromium.launch({
  executablePath: process.argv[2],
  args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--js-flags=--expose-gc', '--enable-precise-memory-info'],
});
const pages = new Map();

function watch(page, said) {
  page.on('pageerror', (error) => said.push(`uncaught: ${error.name}: ${error.message} ${error.stack}`));
  page.on('console', (message) => {
    if (message.type() === 'error') {
      said.push(`${message.text()} (${message.location().url})`);
    }
  });
}

/** Time limit of a request in milliseconds, so that a page that hangs does not block the tests. */
const TIME_LIMIT = 300_000;

function tooLong() {
  return new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`no answer within ${TIME_LIMIT / 1000} s`)), TIME_LIMIT).unref();
  });
}

/** Compiles a function from its text. */
function compiled(code) {
  return (0, eval)(`(${code})`);
}

const REQUESTS = {
  /** Opens a page in its own context. `options` are Playwright's; `script` runs before all scripts of the page. */
  async open({ page: name, options, script, timeout }) {
    const context = await browser.newContext(options);
    context.setDefaultTimeout(timeout);
    const requested = [];
    context.on('request', (request) => requested.push(request.url()));
    if (script) {
      await context.addInitScript({ content: script });
    }
    const page = await context.newPage();
    const said = [];
    watch(page, said);
    pages.set(name, { page, said, requested });
  },
  async close({ page: name }) {
    await pages.get(name).page.context().close();
    pages.delete(name);
  },
  async page({ page: name, method, args }) {
    await pages.get(name).page[method](...args);
  },
  async keyboard({ page: name, method, args }) {
    await pages.get(name).page.keyboard[method](...args);
  },
  async mouse({ page: name, method, args }) {
    await pages.get(name).page.mouse[method](...args);
  },
  async offline({ page: name, offline }) {
    await pages.get(name).page.context().setOffline(offline);
  },
  /** Runs a function in the page and returns its value. */
  async run({ page: name, code, arg }) {
    return pages.get(name).page.evaluate(compiled(code), arg);
  },
  /** Waits until a function in the page returns a true value, and returns it. */
  async until({ page: name, code, arg, timeout }) {
    const handle = await pages
      .get(name)
      .page.waitForFunction(compiled(code), arg, { timeout, polling: 50 });
    return handle.jsonValue();
  },
  /** Calls a method of a locator. */
  async locator({ page: name, selector, method, args }) {
    const given = args.map((arg) => (arg?.code ? compiled(arg.code) : arg));
    const answer = await pages.get(name).page.locator(selector)[method](...given);
    return answer instanceof Buffer ? undefined : answer;
  },
  /** Returns the errors or the requested URLs of the page since the last call. */
  async heard({ page: name, list }) {
    return pages.get(name)[list].splice(0);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await Promise.race([REQUESTS[request.what](request), tooLong()])) ?? null };
  } catch (error) {
    answer = { error: error.stack ?? String(error) };
  }
  process.stdout.write(JSON.stringify({ id: request.id, ...answer }) + '\n');
}
await browser.close();
