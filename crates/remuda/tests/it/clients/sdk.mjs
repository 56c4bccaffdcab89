// A script as the documentation of @comfyorg/sdk writes it: a workflow with a picture of ours, followed to its end.
//
// sdk.mjs FOLDER, with COMFY_BASE_URL in the environment

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Comfy } from "@comfyorg/sdk";
import { PNG } from "pngjs";

const folder = process.argv[2];
const photo = join(folder, "photo.png");

// Of one colour; servers that reckon with fractions are off by one now and then.
async function check(path, wanted) {
  const picture = PNG.sync.read(await readFile(path));
  assert.deepEqual([picture.width, picture.height], [64, 48]);
  const colour = [...picture.data.subarray(0, 3)];
  assert.ok(wanted.every((value, at) => Math.abs(value - colour[at]) <= 1), `${colour} is not ${wanted}`);
}

const picture = new PNG({ width: 64, height: 48 });
for (let at = 0; at < picture.data.length; at += 4) picture.data.set([10, 20, 30, 255], at);
await writeFile(photo, PNG.sync.write(picture, { colorType: 2 }));

const client = new Comfy();
const workflow = await client.workflows.fromFile(join(folder, "workflow_api.json"));
workflow.setInput("1", "image", client.assets.fromFile(photo));
workflow.setInput("3", "preview", true);
const job = await client.submit(workflow);
console.log("submitted", job.id);

const seen = [];
for await (const event of job.events()) {
  seen.push(event.kind);
  if (event.kind === "progress") console.log("progress", event.value, event.currentNode);
  if (event.kind === "statusChange") console.log("status", event.status);
  if (event.kind === "outputReady") console.log("output", event.output.name);
  if (event.kind === "preview") assert.deepEqual([...event.data.subarray(0, 2)], [0xff, 0xd8]);
}
assert.equal(seen[0], "statusChange");
assert.equal(seen.at(-1), "statusChange");
for (const kind of ["progress", "preview", "outputReady"]) assert.ok(seen.includes(kind), `no ${kind} in ${seen}`);

await job.result();
const [output] = job.getOutputs("4");
assert.deepEqual([output.id], job.outputs.map((it) => it.id));
assert.deepEqual([output.type, output.contentType, output.jobId], ["image", "image/png", job.id]);
const out = await output.toFile(join(folder, "out.png"));
assert.equal((await readFile(out)).length, output.sizeBytes);
assert.deepEqual([...(await output.toBytes({ range: [0, 3] }))], [0x89, 0x50, 0x4e, 0x47]);
await check(out, [245, 235, 225]);
const { url } = await output.getDownloadUrl();
assert.equal((await (await fetch(url)).arrayBuffer()).byteLength, output.sizeBytes);

// What was sent before is not sent again; what came out goes in once more.
const again = client.assets.fromFile(photo);
await again.commit();
assert.equal(again.createdNew, false);
workflow.setInput("1", "image", client.assets.fromFile(out));
workflow.setInput("3", "seconds", 0.1);
const back = await client.run(workflow);
await check(await back.getOutputs("4")[0].toFile(join(folder, "back.png")), [10, 20, 30]);

const found = await client.jobs.get(job.id);
assert.equal(found.status, "succeeded");
assert.equal((await found.getWorkflow()).workflow["4"].class_type, "SaveImage");
console.log("done");
