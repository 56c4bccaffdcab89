"""Lets schemathesis reach what it would never guess: ids of jobs and assets there are, and workflows that are nearly right.

Loaded by schemathesis through SCHEMATHESIS_HOOKS, with COMFY_BASE_URL in the environment. Whether something generated
is replaced depends on itself alone, so that a seed gives the same run again.
"""

import copy
import json
import zlib

import schemathesis
from comfy_sdk import Comfy

NODES = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 7}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "fuzzed"}},
}

with Comfy() as client:
    done = client.run(client.workflows.from_json(copy.deepcopy(NODES)))
    slow = copy.deepcopy(NODES)
    slow["2"] = {"class_type": "RemudaHold", "inputs": {"image": ["1", 0], "seconds": 600.0}}
    called_off = client.submit(client.workflows.from_json(slow)).cancel()
    asset = client.assets.from_bytes(b"some bytes", filename="note.txt")
    asset.commit()

JOBS = [done.id, called_off.id]
ASSETS = [done.outputs[0].id, asset.id]


def draw(generated, choices):
    """One of `choices` or none, as `generated` has it."""
    text = json.dumps(generated, default=repr, sort_keys=True).encode()
    at = zlib.crc32(text) % (2 * len(choices))
    return choices[at] if at < len(choices) else None


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if path_parameters and "id" in path_parameters:
        ids = ASSETS if "/assets/" in context.operation.path else JOBS
        # The asset is still wanted; outputs cannot be deleted.
        ids = ids[:1] if context.operation.method == "delete" else ids
        path_parameters["id"] = draw(path_parameters, ids) or path_parameters["id"]
    if path_parameters and "hash" in path_parameters:
        path_parameters["hash"] = draw(path_parameters, [asset.hash]) or path_parameters["hash"]
    return path_parameters


@schemathesis.hook
def map_body(context, body):
    if context.operation.path.endswith("/from-hash") and isinstance(body, dict) and "hash" in body:
        body["hash"] = draw(body, [asset.hash]) or body["hash"]
    if context.operation.path != "/api/v2/jobs" or not isinstance(body, dict):
        return body
    # The right workflow; with something strange in one input; with something strange for a node.
    choice = draw(body, ["right", "input", "node"])
    if choice is None:
        return body
    workflow = copy.deepcopy(NODES)
    strange = body.get("workflow")
    if choice == "input":
        node = workflow[draw(strange, ["1", "2", "3"]) or "1"]
        node["inputs"][next(iter(node["inputs"]))] = strange
    elif choice == "node":
        workflow["4"] = strange
    return body | {"workflow": workflow}
