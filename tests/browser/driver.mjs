/**
 * A browser at the end of a pipe. Each line on standard input is a request, each line on standard output its answer; `browser.py` is
 * the other end. Functions come as text and are run in the page; whatever a page says on its console as an error is kept.
 *
 *     node driver.mjs /usr/bin/chromium
 */

import { createInterface } from 'node:readline';

import { chromium } from 'playwright-core';

const browser = await chromium.launch({
  executablePath: process.argv[2],
  args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'],
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

/** No request takes longer: a page that hangs must not hang the tests. */
const LONGEST = 180_000;

function tooLong() {
  return new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`no answer within ${LONGEST / 1000} s`)), LONGEST).unref();
  });
}

/** A function from its text. */
function compiled(code) {
  return (0, eval)(`(${code})`);
}

const REQUESTS = {
  /** A page in a context of its own; `options` are Playwright's, `script` runs before any of the page's. */
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
  /** Runs a function in the page and gives what it returns. */
  async run({ page: name, code, arg }) {
    return pages.get(name).page.evaluate(compiled(code), arg);
  },
  /** Waits until a function in the page returns something true, and gives that. */
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
  /** What the page has said as an error, or asked of the network, since the last time. */
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
