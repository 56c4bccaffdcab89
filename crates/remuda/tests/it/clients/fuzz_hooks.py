"""Makes what schemathesis generates right where a document cannot say what is right: graphs of known nodes, ids of jobs and
files there are, numbers that a worker has been given. What it generates to be wrong stays wrong.

Loaded by schemathesis through SCHEMATHESIS_HOOKS, with COMFY_BASE_URL and COMFY_API_KEY (an admin's token) in the
environment. Whether something generated is replaced depends on itself alone, so that a seed gives the same run again.
"""

import io
import itertools
import json
import os
import threading
import time
import zlib

import requests
import schemathesis
from comfy_sdk import Comfy
from PIL import Image
from schemathesis.core.parameters import ParameterLocation

URL, ADMIN = os.environ["COMFY_BASE_URL"], os.environ["COMFY_API_KEY"]
NUMBERS = itertools.count(1)


def ask(method, path, body=None, token=ADMIN, **more):
    answer = requests.request(method, URL + path, json=body, headers={"Authorization": f"Bearer {token}"}, **more)
    assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
    return answer.json() if answer.content else None


def number(generated):
    """A number that depends on `generated` alone."""
    return zlib.crc32(json.dumps(generated, default=repr, sort_keys=True).encode())


def choose(generated, choices):
    return choices[number(generated) % len(choices)]


def graph(generated):
    """A right graph: an image, inverted up to three times, and saved."""
    at = number(generated)
    nodes = {"1": {"class_type": "EmptyImage", "inputs": {"width": 8 + at % 8, "height": 8, "batch_size": 1, "color": 7}}}
    for node in range(2, 2 + at % 4):
        nodes[str(node)] = {"class_type": "ImageInvert", "inputs": {"image": [str(node - 1), 0]}}
    nodes["9"] = {"class_type": "SaveImage", "inputs": {"images": [str(len(nodes)), 0], "filename_prefix": "fuzzed"}}
    return nodes


class ScriptedWorker:
    """A worker of a service that no other has. Its one job never ends."""

    def __init__(self, name):
        self.name, self.path, self.lock = name, f"/remuda/v1/workers/{name}", threading.RLock()
        self.service, self.seq = f"fuzz-{name}", itertools.count(1)
        joined = ask("POST", "/remuda/v1/workers", {"worker": name, "machine": name, "services": [self.service]})
        self.token, self.incarnation, self.term = joined["token"], joined["incarnation"], joined["term"]
        self.held = []

    def fields(self):
        return {"incarnation": self.incarnation, "seq": next(self.seq), "term": self.term}

    def keep_job(self):
        """Names the attempt that it has, whatever became of it under the fuzzer's beats. One that it lost, because nothing
        was asked of it for longer than its lease, it names no more: the plane would count its slot as taken."""
        with self.lock:
            for _ in range(50):
                job = self.held and ask("GET", f"/remuda/v1/jobs/{self.held[0]['job']}")
                if not job or job["state"] not in ("queued", "running"):
                    submitted = {"workflow": {"endless": True}, "service": self.service, "attempts_max": 255}
                    self.held = [{"job": ask("POST", "/remuda/v1/jobs", submitted)["id"], "attempt": 0}]
                    continue
                self.held[0]["attempt"] = job["attempt"]
                held = self.held if job["state"] == "running" else []
                ask("POST", f"{self.path}/beat?wait=0.1", self.fields() | {"held": held}, self.token)
                if held:
                    return self.held[0]
        raise AssertionError(f"{self.name} got no attempt")


PNG = io.BytesIO()
Image.new("RGB", (8, 8), "red").save(PNG, "PNG")
PNG = PNG.getvalue()

with Comfy() as client:
    done = client.run(client.workflows.from_json(graph("done")))
    asset = client.assets.from_bytes(b"some bytes", filename="note.txt")
    asset.commit()
    ASSETS = [done.outputs[0].id, asset.id]

# No worker has its class: it waits until it is called off.
waiting = {"1": {"class_type": "NoSuchNode", "inputs": {}}}
called_off = ask("POST", "/api/v2/jobs", {"workflow": waiting, "wait_for_capability": True})["id"]
ask("POST", f"/api/v2/jobs/{called_off}/cancel")
JOBS = [done.id, called_off]

ask("POST", "/upload/image", files={"image": ("fuzzed.png", PNG)})
ask("POST", "/userdata/texts%2Ffuzzed.txt", data=b"some text")
PICTURE = ask("POST", "/remuda/v1/blobs", data=PNG)["hash"]
SHAPE = ask("GET", f"/remuda/v1/jobs/{done.id}")["shape"]
VIEWED = ask("GET", f"/history/{done.id}")[done.id]["outputs"]["9"]["images"][0]
# The machine of the workers that do jobs.
MACHINE = ask("GET", "/remuda/v1/workers/one")["machine"]
# What the others need: never drained or replaced.
RESERVED = {"one", "two", "mule", "holder", "beater", MACHINE}
# One has a job, one is for beats of any content, one is drained and leaves.
WORKER, BEATER, LEAVER = (ScriptedWorker(name) for name in ("holder", "beater", "leaver"))
WORKER.keep_job()

PARTS = {"image", "type", "subfolder", "overwrite", "original_ref"}
# Of every path parameter by the words around it: values there are.
KNOWN = {
    "/api/v2/assets/{id}": ASSETS,
    "/jobs/{id}": JOBS,
    "/history/{id}": JOBS,
    "/by-hash/{hash}": [asset.hash],
    "/blobs/{hash}": [PICTURE],
    "/{shape}": [SHAPE],
    "/workers/{id}": ["one", "holder"],
    "/machines/{id}": [MACHINE],
    "/fleets/{id}": ["local"],
    "/userdata/{name}": ["texts/fuzzed.txt"],
    "/object_info/{name}": ["SaveImage", "LoadImage"],
    "/models/{name}": ["checkpoints"],
    "/v1/models/{id}": ["embed", "chat"],
}


@schemathesis.auth(refresh_interval=None)
class Tokens:
    """An admin's, except where a worker reports about itself."""

    def get(self, case, context):
        return own_worker(case.operation).token if is_own(case.operation) else ADMIN

    def set(self, case, token, context):
        case.headers["Authorization"] = f"Bearer {token}"


def is_own(operation):
    return operation.path.startswith("/remuda/v1/workers/{id}/") and not operation.path.endswith("/drain")


def own_worker(operation):
    return BEATER if operation.path.endswith("/beat") else WORKER


@schemathesis.hook
def before_call(context, case, kwargs):
    """In every phase, just before it is sent."""
    mode = case.meta and case.meta.generation.mode
    if case.meta is None or not case.meta.is_negative_at(ParameterLocation.PATH):
        right_path(case)
    if case.operation.path.startswith("/upload/") and isinstance(case.body, dict):
        # Other parts are ignored; a name that no header may have is not one of a part.
        case.body = {name: value for name, value in case.body.items() if name in PARTS}
    if mode is None or mode.is_positive:
        make_right = RIGHT.get(case.operation.label)
        if make_right:
            make_right(case)
        # Each is good for one request.
        if "Idempotency-Key" in case.headers:
            case.headers["Idempotency-Key"] = f"key-{next(NUMBERS)}"
        # No document says how long a file is.
        if case.headers.get("Range", "").startswith("bytes="):
            case.headers["Range"] = "bytes=0-3"
    # It is as right or wrong as before: schemathesis itself would take every body with bytes for a wrong one.
    case._record_starting_state()


def right_path(case):
    path, values = case.operation.path, case.path_parameters
    if not isinstance(values, dict):
        return
    for name in list(values):
        end = path.index("{%s}" % name) + len(name) + 2
        known = next((known for words, known in KNOWN.items() if path[:end].endswith(words)), None)
        if is_own(case.operation):
            values[name] = own_worker(case.operation).name
        elif case.method in ("DELETE", "POST") and "/workers/" in path or path.endswith("/drain"):
            values[name] = LEAVER.name if values[name] in RESERVED or number(values) % 2 else values[name]
        elif case.method == "DELETE" and "/assets/" in path:
            # The asset is still wanted; outputs cannot be deleted.
            values[name] = choose(values, [ASSETS[0], values[name]])
        elif known:
            values[name] = choose(values, known + [values[name]])


def without_nul(value):
    """Workflows with NUL are refused: some programs would cut the text there."""
    return json.loads(json.dumps(value).replace("\\u0000", ""))


def submission(case):
    body = case.body
    if choose(body, [True, False]) or body.get("service") == "comfyui" or body.get("attachments"):
        body["workflow"] = graph(body)
    else:
        body["workflow"] = without_nul(body["workflow"]) or {"empty": True}
    # Each has to be named by an input.
    body["attachments"] = {name: PICTURE for name in body.get("attachments", {})}
    for at, name in enumerate(body["attachments"]):
        body["workflow"][f"a{at}"] = {"class_type": "LoadImage", "inputs": {"image": name}}
        body["workflow"][f"b{at}"] = {"class_type": "PreviewImage", "inputs": {"images": [f"a{at}", 0]}}
    # Models and classes that no worker has are waited for.
    body["wait_for_capability"] = True
    right_webhook(body)
    # In the header and in the body it is the same.
    if "idempotency_key" in body:
        case.headers.pop("Idempotency-Key", None)
        body["idempotency_key"] = body["idempotency_key"] and f"key-{next(NUMBERS)}"


def right_webhook(body):
    """Addresses of private networks are refused."""
    if body.get("webhook"):
        body["webhook"]["url"] = "https://hooks.example/done"


def comfy_submission(case):
    case.body["workflow"] = graph(case.body)
    right_webhook(case.body)


def prompt(case):
    case.body["prompt"] = graph(case.body)
    case.body.pop("prompt_id", None)
    if case.body.get("partial_execution_targets"):
        case.body["partial_execution_targets"] = ["9"]


def from_hash(case):
    case.body["hash"] = choose(case.body, [asset.hash, case.body["hash"]])


def asset_upload(case):
    case.body.pop("expected_hash", None)


def mask(case):
    case.body["image"] = PNG
    case.body["original_ref"] = json.dumps({"filename": "fuzzed.png", "subfolder": "", "type": "input"})


def beat(case):
    case.query["wait"] = 0.01
    case.body |= BEATER.fields()


def attempt(case):
    case.query |= WORKER.keep_job()


def preview(case):
    attempt(case)
    case.body = PNG


def cost(case):
    now = int(time.time() * 1000)
    right = [{}, {"until": now}, {"from": now - 3_600_000}, {"from": now - 7_200_000, "until": now - 3_600_000}]
    case.query = {name: value for name, value in case.query.items() if name == "by"} | choose(case.query, right)


def events(case):
    """From the first event on: there is one to wait for."""
    case.query = {"after": 0}
    case.headers.pop("Last-Event-ID", None)


def model(name):
    def call(case):
        # A model that is there, or none: one of another kind is refused.
        case.body["model"] = choose(case.body, [name, name, "missing"])
        # Not longer than the model's vectors, not shorter than an answer takes.
        for option in ("dimensions", "deadline_seconds", "n"):
            case.body.pop(option, None)
        # The stand-in has nothing to say to nothing.
        for message in case.body.get("messages", []):
            message["content"] = choose(message, ["hello", [{"type": "text", "text": "hello"}]])

    return call


def user_file(case):
    """Served as JSON by its name."""
    if case.path_parameters["name"].endswith(".json"):
        case.body = '{"a": 1}'


def listing(case):
    case.query = {name: value for name, value in case.query.items() if name not in ("metadata", "metadata[]")}


def join(case):
    if case.body["worker"] in RESERVED:
        case.body["worker"] = LEAVER.name


def running_job(case):
    held = WORKER.keep_job()
    ask("PUT", f"{WORKER.path}/preview", token=WORKER.token, params=held, data=PNG)
    case.path_parameters["id"] = held["job"]


def waiting_job(case):
    waiting = {"workflow": {"waits": True}, "service": "fuzz-none"}
    case.path_parameters["id"] = ask("POST", "/remuda/v1/jobs", waiting)["id"]


def view(case):
    case.query = choose(case.query, [VIEWED, case.query])


RIGHT = {
    "POST /remuda/v1/jobs": submission,
    "POST /api/v2/jobs": comfy_submission,
    "POST /prompt": prompt,
    "POST /api/v2/assets": asset_upload,
    "POST /api/v2/assets/from-hash": from_hash,
    "POST /upload/mask": mask,
    "PUT /remuda/v1/blobs/{hash}": lambda case: case.path_parameters.update(hash=PICTURE),
    "POST /remuda/v1/workers/{id}/beat": beat,
    "PUT /remuda/v1/workers/{id}/live": attempt,
    "PUT /remuda/v1/workers/{id}/preview": preview,
    "GET /remuda/v1/cost": cost,
    "GET /remuda/v1/events": events,
    "POST /v1/embeddings": model("embed"),
    "POST /v1/chat/completions": model("chat"),
    "POST /v1/images/generations": model("draw"),
    "GET /view": view,
    "GET /userdata": lambda case: case.query.update(dir=choose(case.query, ["texts", case.query["dir"]])),
    "POST /remuda/v1/workers": join,
    "GET /remuda/v1/jobs/{id}/preview": running_job,
    "POST /remuda/v1/jobs/{id}/cancel": waiting_job,
    "GET /api/v2/jobs": listing,
    "POST /userdata/{name}": user_file,
}
