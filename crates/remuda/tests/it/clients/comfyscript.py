"""A script as users of ComfyScript write it: nodes are functions, made from the server's description of its classes, and
their arguments are positional. The same calls must give the same graph with a server and with Remuda in front of it.

comfyscript.py URL SERVER
"""

import json
import sys

from comfy_script.client import get_nodes_info
from comfy_script.runtime import *
from comfy_script.transpile import WorkflowToScriptTranspiler

url, server = sys.argv[1:]
STEPS = 6


def positional_calls():
    """What the arguments 0, 1, 2, … of every class are called, in their order."""
    calls = {}
    for name, function in node.nodes.items():
        inputs = function.info["input"]
        count = len(inputs.get("required", {})) + len(inputs.get("optional", {}))
        made = function(*range(count))
        made = made[0] if isinstance(made, list) else made
        calls[name] = {key: value for key, value in made.node_prompt["inputs"].items() if isinstance(value, int)}
    return calls


def stock_workflow():
    """ComfyUI's default workflow, as the documentation of ComfyScript writes it."""
    from comfy_script.runtime.nodes import (
        Checkpoints,
        CheckpointLoaderSimple,
        CLIPTextEncode,
        EmptyLatentImage,
        KSampler,
        SaveImage,
        VAEDecode,
    )

    with Workflow(queue=False) as workflow:
        model, clip, vae = CheckpointLoaderSimple(Checkpoints.v1_5_pruned_emaonly_fp16)
        positive = CLIPTextEncode("beautiful scenery nature glass bottle landscape", clip)
        negative = CLIPTextEncode("text, watermark", clip)
        latent = EmptyLatentImage(128, 64, 1)
        latent = KSampler(model, 0x010203, STEPS, 8, "euler", "normal", positive, negative, latent, 1)
        SaveImage(VAEDecode(latent, vae), "script")
    return workflow


def run(workflow):
    """The picture, as ComfyScript gets it, and what it was told meanwhile."""
    progress, previews = [], []
    task = workflow.queue()
    task.add_progress_callback(lambda it: progress.append((it.node_id, it.value, it.max)))
    task.add_preview_callback(lambda task, node, preview: previews.append((node, preview.size, preview.format)))
    (result,) = task.wait()
    return result[0], progress, previews


load(server, watch=False)
wanted_info = json.dumps(get_nodes_info())
wanted_calls, wanted_graph = positional_calls(), stock_workflow().api_format_json()

load(url)
assert json.dumps(get_nodes_info()) == wanted_info, "classes, inputs and values should come in the server's order"
calls = positional_calls()
for name in wanted_calls:
    assert list(calls[name].items()) == list(wanted_calls[name].items()), (name, calls[name], wanted_calls[name])
workflow = stock_workflow()
assert workflow.api_format_json() == wanted_graph, workflow.api_format_json()
print("same graph", flush=True)

picture, progress, previews = run(workflow)
assert picture.size == (128, 64), picture.size
assert picture.getpixel((0, 0)) == (3, 2, 1), picture.getpixel((0, 0))
assert progress[-1] == ("KSampler.0", STEPS, STEPS), progress
assert len(previews) == STEPS and {node for node, *_ in previews} == {"KSampler.0"}, previews

# The picture tells how it was made: the graph within it becomes the script that made it.
assert json.loads(picture.info["prompt"]) == json.loads(wanted_graph), picture.info["prompt"]
script = WorkflowToScriptTranspiler.from_image(picture).to_script()
assert f"KSampler(model, {0x010203}, {STEPS}, 8, 'euler', 'normal', " in script, script
print("done", flush=True)
