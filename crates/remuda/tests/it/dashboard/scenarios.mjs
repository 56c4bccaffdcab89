// What people do in the dashboard and see there. The test that starts this acts as the rest of the world: it waits for the
// lines printed here, and kills and starts what the story needs.
//
// scenarios.mjs SCENARIO URL CHROMIUM [ARGUMENT…]

import assert from "node:assert/strict";
import { Dashboard } from "./browser.mjs";

const [scenario, url, chromium, ...rest] = process.argv.slice(2);
const folder = process.cwd();
const LOOKS = [
  ["light", {}],
  ["dark", { colorScheme: "dark" }],
  ["phone", { isPhone: true }],
];

/** Opens each page in each look. `pages` are names, addresses and a text that must be on the page. */
async function look(prefix, pages) {
  for (const [name, options] of LOOKS) {
    const dashboard = await Dashboard.open(url, folder, chromium, options);
    for (const [page, hash, text] of pages) {
      await dashboard.go(hash);
      await dashboard.page.getByText(text).first().waitFor();
      await dashboard.page.locator(".loading").first().waitFor({ state: "detached" });
      await dashboard.isAccessible(`${prefix}-${page} in ${name}`);
      await dashboard.picture(`${prefix}-${page}-${name}`);
      const overflow = await dashboard.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `${page} in ${name} is ${overflow} pixels too wide`);
    }
    dashboard.hasNoTroubles();
    await dashboard.close();
    console.log(`looked ${name}`);
  }
}

const SCENARIOS = {
  /** A plane with nothing in it teaches what to do. */
  async empty() {
    await look("empty", [
      ["now", "/", "No worker has joined yet"],
      ["jobs", "/jobs", "No job yet"],
      ["workers", "/workers", "No worker has joined yet"],
      ["workflows", "/workflows", "None: every worker gets every workflow"],
      ["fleet", "/fleet", "No fleet is configured"],
      ["events", "/events", "No such event is stored"],
      ["settings", "/settings", "Nothing was changed yet"],
      ["health", "/health", "accepts connections"],
    ]);
  },

  /** The same pages with jobs in every state. */
  async busy() {
    const [failed, completed, waiting, running, worker] = rest;
    await look("busy", [
      ["now", "/", "Running jobs"],
      ["jobs", "/jobs", "cancelled"],
      ["job-failed", `/jobs/${failed}`, "Failed for good"],
      ["job-completed", `/jobs/${completed}`, "Accepted and stored"],
      ["job-waiting", `/jobs/${waiting}`, "Could it take this job?"],
      ["job-running", `/jobs/${running}`, "Attempt 1 on"],
      ["workers", "/workers", worker],
      ["worker", `/workers/${worker}`, "success rate"],
      ["workflows", "/workflows", "Workers and workflows"],
      ["fleet", "/fleet", "Control cycles"],
      ["events", "/events", "was accepted"],
      ["settings", "/settings", "job.cancel"],
      ["health", "/health", "number_sampler"],
    ]);
  },

  /** A worker is killed while the page is open: tile, sentence and feed follow without a reload. */
  async live() {
    const [worker, other, job] = rest;
    const dashboard = await Dashboard.open(url, folder, chromium);
    const { page } = dashboard;
    await dashboard.go("/");
    const tile = page.locator(`[data-worker="${worker}"]`);
    await page.locator(`[data-worker="${worker}"][data-concern="working"]`).waitFor();
    await page.evaluate(() => (window.wasNotLoadedAgain = true));
    console.log("watching");
    await page.locator(`[data-worker="${worker}"]:is([data-concern="handled"], [data-concern="person"])`).waitFor();
    assert.equal(await page.locator(".tile").first().getAttribute("data-worker"), worker, "trouble comes first");
    await page.locator("h1.sentence").getByText(new RegExp(`silent \\(${worker}\\)`)).waitFor();
    await page.locator(".feed").getByText(new RegExp(`Job .* moved from ${worker} to ${other}`)).waitFor();
    await page.locator(`.running-job[data-job="${job}"]`).getByText(other).waitFor();
    await tile.getByText("offline").waitFor();
    await dashboard.picture("live-killed");
    await page.locator(".feed a", { hasText: job.slice(-8) }).first().click();
    await page.getByText("the worker sent no beat within its lease").waitFor();
    await page.getByText(/^Attempt 2 on/).waitFor();
    await dashboard.picture("live-job-moved");
    assert.ok(await page.evaluate(() => window.wasNotLoadedAgain), "the page was loaded again");
    dashboard.hasNoTroubles();
    await dashboard.close();
    console.log("done");
  },

  /** The plane dies and comes back: the page says so, greys what it has, and goes on by itself. */
  async reconnect() {
    const dashboard = await Dashboard.open(url, folder, chromium);
    const { page } = dashboard;
    // A browser notes every refused connection.
    dashboard.expected.push("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET");
    await dashboard.go("/");
    await page.locator("h1.sentence").waitFor();
    await page.locator(".feed").getByText("joined").first().waitFor();
    console.log("watching");
    await page.getByText(/Connection to the plane lost .* ago, trying again/).waitFor();
    await page.locator("main.stale").waitFor();
    await dashboard.picture("reconnect-lost");
    console.log("lost");
    await page.locator("main:not(.stale)").waitFor();
    assert.equal(await page.getByText("Connection to the plane lost").count(), 0);
    console.log("back");
    // What happens after the restart arrives on the stream.
    await page.locator(".feed").getByText(/was cancelled: after the restart/).waitFor();
    dashboard.hasNoTroubles();
    await dashboard.close();
    console.log("done");
  },

  /** Filters and the search are in the address: a reload, a link and the way back show the same list. */
  async filters() {
    const [failed, labelled, count] = rest;
    const dashboard = await Dashboard.open(url, folder, chromium);
    const { page } = dashboard;
    const rows = page.locator("tr[data-job]");
    const shows = async (number) => {
      await page.waitForFunction((wanted) => document.querySelectorAll("tr[data-job]").length === wanted, number);
    };
    await dashboard.go("/jobs");
    await shows(Number(count));
    await page.getByRole("button", { name: "failed", exact: true }).click();
    await shows(1);
    assert.equal(await rows.getAttribute("data-job"), failed);
    assert.match(page.url(), /#\/jobs\?state=failed$/);
    await page.reload();
    await shows(1);
    await page.getByRole("button", { name: "all", exact: true }).click();
    await shows(Number(count));
    // `/` begins a search, from the keyboard alone.
    await page.locator("body").press("/");
    await page.keyboard.type("customer=Anna");
    await page.keyboard.press("Enter");
    await shows(1);
    assert.equal(await rows.getAttribute("data-job"), labelled);
    assert.match(page.url(), /search=customer%3DAnna/);
    await page.keyboard.press("Escape");
    await page.keyboard.press("j");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: `Job ${labelled.slice(-8)}` }).waitFor();
    await page.goBack();
    await shows(1);
    await page.getByRole("searchbox").fill("nothing has this");
    await page.keyboard.press("Enter");
    await page.getByText("No job matches").waitFor();
    await page.getByRole("searchbox").fill(failed);
    await page.keyboard.press("Enter");
    await page.getByText("Failed for good").waitFor();
    for (const [keys, title] of [["gw", "Workers and machines"], ["gf", "Fleet and money"], ["gj", "Jobs"]]) {
      for (const key of keys) await page.locator("body").press(key);
      await page.getByRole("heading", { name: title, level: 1 }).waitFor();
    }
    await page.locator("body").press("?");
    await page.getByRole("dialog", { name: "Keys" }).waitFor();
    await dashboard.picture("filters-keys");
    await page.keyboard.press("Escape");
    dashboard.hasNoTroubles();
    await dashboard.close();
    console.log("done");
  },

  /** Every button that changes something says what it will do, and does it. */
  async actions() {
    const [running, worker, blocked] = rest;
    const dashboard = await Dashboard.open(url, folder, chromium);
    const { page } = dashboard;
    const dialog = page.getByRole("dialog");
    await dashboard.go(`/jobs/${running}`);
    await page.getByRole("button", { name: "Cancel…" }).click();
    await dialog.getByText("which is told to stop it").waitFor();
    await dashboard.isAccessible("a dialog");
    await dashboard.picture("actions-cancel");
    await dialog.getByRole("button", { name: "Keep as it is" }).click();
    await page.locator('article[data-state="running"]').waitFor();
    await page.getByRole("button", { name: "Cancel…" }).click();
    await dialog.getByLabel(/Reason/).fill("a test");
    await dialog.getByRole("button", { name: "Cancel the job" }).click();
    await page.locator('article[data-state="cancelled"]').waitFor();
    await page.locator(".job-reason").getByText("a test (cancelled in the dashboard)").waitFor();
    console.log("cancelled");

    await page.getByRole("button", { name: "Run again…" }).click();
    await dialog.getByRole("button", { name: "Run it again" }).click();
    await page.getByText("run again from").waitFor();
    const again = decodeURIComponent(page.url().split("/").at(-1));
    assert.notEqual(again, running);
    console.log(`again ${again}`);

    await dashboard.go("/workflows");
    const block = page.locator(`[data-block="${blocked}"]`);
    await block.getByRole("button", { name: "Lift…" }).click();
    await dialog.getByText("gets jobs of workflow").waitFor();
    await dialog.getByRole("button", { name: "Lift the block" }).click();
    await block.waitFor({ state: "detached" });
    console.log("lifted");

    await dashboard.go("/workers");
    const row = page.locator(`tr[data-worker="${worker}"]`);
    await row.getByRole("button", { name: "Drain…" }).click();
    await dialog.getByText("It gets no new work.").waitFor();
    await dialog.getByRole("button", { name: "Drain the worker" }).click();
    await page.getByText(`${worker} is draining.`).waitFor();
    await row.waitFor({ state: "detached" });
    await dashboard.picture("actions-drained");
    dashboard.hasNoTroubles();
    await dashboard.close();
    console.log("done");
  },

  /** A token decides what is shown: a client sees its own jobs, an admin everything. */
  async roles() {
    const [admin, client, own, foreign] = rest;
    const dashboard = await Dashboard.open(url, folder, chromium);
    const { page } = dashboard;
    // A browser notes every refused request.
    dashboard.expected.push("401", "404");
    await dashboard.go("/");
    await page.getByText("This plane needs a token").waitFor();
    await dashboard.isAccessible("the form for a token");
    await dashboard.picture("roles-token");
    const enter = async (token) => {
      await page.getByLabel("Token").fill(token);
      await page.getByRole("button", { name: "Open the dashboard" }).click();
    };
    await enter("rmd_wrong");
    await page.getByText("unknown, expired or revoked").waitFor();
    await enter(client);
    await page.locator(`tr[data-job="${own}"]`).waitFor();
    assert.equal(await page.locator(`tr[data-job="${foreign}"]`).count(), 0, "a client saw another tenant's job");
    assert.deepEqual(await page.locator("nav li").allTextContents(), ["Jobs", "Events"]);
    await dashboard.picture("roles-client");
    await dashboard.go(`/jobs/${foreign}`);
    await page.getByText("there is no job").waitFor();
    await dashboard.go(`/jobs/${own}`);
    await page.getByText("Accepted and stored").waitFor();
    // The token is in no address, and gone with the tab.
    assert.ok(!page.url().includes(client));
    assert.equal(await page.evaluate(() => localStorage.length + document.cookie.length), 0);
    await page.getByRole("button", { name: /Sign out/ }).click();
    await enter(admin);
    await page.getByRole("link", { name: "Workers" }).waitFor();
    await dashboard.go("/jobs");
    await page.locator(`tr[data-job="${foreign}"]`).waitFor();
    await dashboard.go("/health");
    await page.getByText("anna's laptop").waitFor();
    dashboard.hasNoTroubles();
    await dashboard.close();
    console.log("done");
  },

  /** A hundred thousand jobs: a page loads a screen of them, at once. */
  async many() {
    const [needle] = rest;
    const dashboard = await Dashboard.open(url, folder, chromium);
    const { page } = dashboard;
    let received = 0;
    page.on("response", async (response) => {
      received += (await response.body().catch(() => "")).length;
    });
    const timed = async (name, work) => {
      const began = performance.now();
      await work();
      const millis = Math.round(performance.now() - began);
      console.log(`took ${name} ${millis} ms`);
      return millis;
    };
    await timed("first page", async () => {
      await dashboard.go("/");
      await page.locator(".number-value").first().waitFor();
    });
    const paint = await page.evaluate(() => Math.round(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1));
    console.log(`took first paint ${paint} ms`);
    await timed("jobs", async () => {
      await page.getByRole("link", { name: "Jobs", exact: true }).click();
      await page.locator("tr[data-job]").first().waitFor();
    });
    assert.equal(await page.locator("tr[data-job]").count(), 50);
    await timed("failed", async () => {
      await page.getByRole("button", { name: "failed", exact: true }).click();
      await page.locator('tr[data-state="failed"]').first().waitFor();
    });
    await timed("older", async () => {
      await page.getByRole("button", { name: "Older jobs" }).click();
      await page.waitForFunction(() => document.querySelectorAll("tr[data-job]").length === 100);
    });
    await page.getByRole("button", { name: "all", exact: true }).click();
    await timed("search", async () => {
      await page.getByRole("searchbox").fill("order=4711");
      await page.keyboard.press("Enter");
      await page.getByText("Nothing among the newest 20,000 jobs").waitFor();
    });
    // The job is behind 80,000 others: the search goes on where it stopped.
    for (let searches = 0; (await page.locator("tr[data-job]").count()) === 0; searches += 1) {
      assert.ok(searches < 6, "the job was not found");
      await timed("search older", async () => {
        const older = page.getByRole("button", { name: "Search older jobs" });
        await older.click();
        await page.waitForFunction(() => !document.querySelector(".more button")?.disabled);
      });
    }
    assert.equal(await page.locator("tr[data-job]").getAttribute("data-job"), needle);
    console.log(`received ${received} bytes`);
    assert.ok(received < 2_000_000, `${received} bytes were loaded`);
    await dashboard.picture("many-found");
    dashboard.hasNoTroubles();
    await dashboard.close();
    console.log("done");
  },
};

await SCENARIOS[scenario]();
