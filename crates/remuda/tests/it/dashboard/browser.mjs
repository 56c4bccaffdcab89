// A browser for the dashboard's tests: it notes every error and every request to another place, takes pictures for people to
// look at, and asks axe whether everyone can use the page.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const ARGUMENTS = [
  "--no-sandbox",
  "--disable-dev-shm-usage",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const PHONE = { width: 390, height: 844 };
const DESK = { width: 1400, height: 900 };
/** As long as the harness waits for anything. */
const TIMEOUT = 40_000;
const axePath = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

export class Dashboard {
  static async open(url, folder, executablePath, { colorScheme = "light", isPhone = false } = {}) {
    const browser = await chromium.launch({ executablePath, args: ARGUMENTS });
    const context = await browser.newContext({ viewport: isPhone ? PHONE : DESK, colorScheme });
    const dashboard = new Dashboard();
    Object.assign(dashboard, { url, folder, browser, context, troubles: [], expected: [] });
    dashboard.page = await dashboard.newPage();
    return dashboard;
  }

  async newPage() {
    const page = await this.context.newPage();
    page.setDefaultTimeout(TIMEOUT);
    page.on("pageerror", (error) => this.troubles.push(`error: ${error}`));
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") this.troubles.push(`console: ${message.text()}`);
    });
    page.on("request", (request) => {
      const { origin, protocol } = new URL(request.url());
      const isOwn = origin === this.url || protocol === "blob:" || protocol === "data:";
      if (!isOwn) this.troubles.push(`request to ${request.url()}`);
    });
    return page;
  }

  /** Opens a page by the part of its address after `#`. */
  async go(hash) {
    await this.page.goto(`${this.url}/remuda/#${hash}`);
  }

  async picture(name) {
    await this.page.screenshot({ path: join(this.folder, `${name}.png`) });
  }

  /** No violation of WCAG 2 A and AA. */
  async isAccessible(name) {
    // As a tool of the tests, beside the content policy, which lets the page itself load nothing of the kind.
    const axe = await (await import("node:fs/promises")).readFile(axePath, "utf8");
    await this.page.evaluate(axe);
    const { violations } = await this.page.evaluate(() =>
      window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }),
    );
    const found = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
    assert.deepEqual(found, [], `${name} is not accessible`);
  }

  /** That nothing went wrong but what was expected to. */
  hasNoTroubles() {
    const troubles = this.troubles.filter((trouble) => !this.expected.some((part) => trouble.includes(part)));
    assert.deepEqual(troubles, []);
  }

  async close() {
    await this.browser.close();
  }
}
