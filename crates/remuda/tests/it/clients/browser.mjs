// The stock web UI in a real browser: it loads, a workflow is put onto its canvas, and the rest is what a person does
// and sees there.
//
// browser.mjs URL FOLDER CHROMIUM

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [url, folder, executablePath] = process.argv.slice(2);
const workflow = JSON.parse(await readFile(join(folder, "workflow_api.json"), "utf8"));
// Not the same each time, so that no server has it ready.
const blue = Math.floor(Math.random() * 256);
// A picture of one colour, large enough to be seen, instead of one that would have to be uploaded first.
workflow["1"] = {
  class_type: "EmptyImage",
  inputs: { width: 256, height: 256, batch_size: 1, color: 0x206000 + blue },
  _meta: { title: "One colour" },
};

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const page = await browser.newPage({ viewport: { width: 1600, height: 900 } });
const troubles = [];
const seen = [];
page.on("pageerror", (error) => troubles.push(String(error)));
page.on("websocket", (socket) =>
  socket.on("framereceived", ({ payload }) => {
    if (typeof payload === "string") seen.push(JSON.parse(payload));
  }),
);

try {
  await page.goto(url);
  await page.waitForFunction(() => window.app?.extensionManager && window.app?.graph, null, { timeout: 60_000 });
  console.log("loaded");
  // On a first visit it offers templates, sooner or later: whoever has a workflow already closes that.
  await page.addLocatorHandler(page.getByTestId("dialog-overlay"), () => page.keyboard.press("Escape"));

  await page.evaluate((graph) => window.app.loadApiJson(graph, "workflow"), workflow);
  await page.waitForFunction(() => window.app.graph.nodes.length === 4);
  await page.getByTestId("queue-button").first().click();
  console.log("queued");

  // As the UI itself sees it: the node that is at work, and how far it is.
  await page.waitForFunction(() => document.title.match(/\[[1-9]\d*%\]/), null, { timeout: 30_000 });
  console.log("progress", await page.title());
  await page.screenshot({ path: join(folder, "running.png") });

  const shown = await page.waitForFunction(
    () => window.app.graph.nodes.find((node) => node.type === "SaveImage")?.imgs?.find((img) => img.naturalWidth)?.src,
    null,
    { timeout: 60_000 },
  );
  const src = await shown.jsonValue();
  assert.match(src, /\/api\/view\?/);
  const colour = await page.evaluate(async (src) => {
    const bitmap = await createImageBitmap(await (await fetch(src)).blob());
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    canvas.drawImage(bitmap, 0, 0);
    return [bitmap.width, bitmap.height, ...canvas.getImageData(5, 5, 1, 1).data.subarray(0, 3)];
  }, src);
  const wanted = [256, 256, 0xdf, 0x9f, 0xff - blue];
  // Servers that reckon with fractions are off by one now and then.
  assert.ok(wanted.every((value, at) => Math.abs(value - colour[at]) <= 1), `${colour} is not ${wanted}`);
  await page.getByText("0 active").waitFor();
  await page.screenshot({ path: join(folder, "done.png") });
  console.log("shown", src);

  const kinds = new Set(seen.map((message) => message.type));
  for (const kind of ["status", "execution_start", "executing", "executed", "execution_success"])
    assert.ok(kinds.has(kind), `no ${kind} in ${[...kinds]}`);
  assert.deepEqual(troubles, []);
  console.log("done");
} catch (error) {
  await page.screenshot({ path: join(folder, "failed.png") });
  console.error("troubles", troubles, "messages", seen.map((message) => message.type).join(" "));
  throw error;
} finally {
  await browser.close();
}
