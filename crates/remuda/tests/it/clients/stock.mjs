// Scripts as users of two npm libraries write them: upload a picture, run a workflow with it, follow it, keep what
// comes out.
//
// stock.mjs URL FOLDER

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Client } from "@stable-canvas/comfyui-client";
import { ComfyUIClient } from "comfy-ui-client";
import { PNG } from "pngjs";

const [url, folder] = process.argv.slice(2);
const host = new URL(url).host;
const workflow = JSON.parse(await readFile(join(folder, "workflow_api.json"), "utf8"));

function photo(red, green, blue) {
  const picture = new PNG({ width: 64, height: 48, colorType: 2 });
  for (let at = 0; at < picture.data.length; at += 4) picture.data.set([red, green, blue, 255], at);
  return PNG.sync.write(picture, { colorType: 2 });
}

// What the workflow makes of a photo: the same size, every colour turned around.
async function check(content, red, green, blue) {
  const picture = PNG.sync.read(Buffer.from(content));
  assert.deepEqual([picture.width, picture.height], [64, 48]);
  assert.deepEqual([...picture.data.subarray(0, 3)], [255 - red, 255 - green, 255 - blue]);
  await writeFile(join(folder, "out.png"), Buffer.from(content));
}

function filled(image) {
  const copy = structuredClone(workflow);
  copy["1"].inputs.image = image.subfolder ? `${image.subfolder}/${image.name}` : image.name;
  return copy;
}

async function stableCanvas() {
  const client = new Client({ api_host: host, WebSocket, fetch });
  await client.connect();
  const form = new FormData();
  form.append("image", new Blob([photo(1, 2, 3)]), "canvas.png");
  const uploaded = await (await client.fetchApi("/upload/image", { method: "POST", body: form })).json();
  const seen = [];
  const output = await client.enqueue(filled(uploaded), {
    progress: ({ value, max }) => {
      seen.push(value / max);
      console.log(`progress ${value}/${max}`);
    },
  });
  client.close();
  assert.ok(seen.length > 1, "its progress should have been told");
  assert.equal(output.images.length, 1);
  const image = output.images[0];
  const content = image.type === "buff" ? image.data : await (await fetch(image.data)).arrayBuffer();
  await check(content, 1, 2, 3);
  console.log("stable-canvas has it");
}

async function comfyUiClient() {
  const client = new ComfyUIClient(host, crypto.randomUUID());
  await client.connect();
  const uploaded = await client.uploadImage(photo(4, 5, 6), "client.png", true);
  const images = await client.getImages(filled(uploaded));
  assert.deepEqual(Object.keys(images), ["4"]);
  assert.equal(images["4"].length, 1);
  await check(await images["4"][0].blob.arrayBuffer(), 4, 5, 6);
  const history = await client.getHistory();
  assert.ok(Object.keys(history).length >= 2, "both should be in its history");
  await client.disconnect();
  console.log("comfy-ui-client has it");
}

await stableCanvas();
await comfyUiClient();
