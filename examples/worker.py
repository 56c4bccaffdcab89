#!/usr/bin/env python3
"""A whole Remuda worker with nothing but Python's standard library: it spells workflows backwards.

    remuda serve &
    python3 examples/worker.py http://127.0.0.1:8288 speller
    remuda run examples/hello.json

Beat up, orders down: each beat names everything the worker holds, and the answer says what to start and to stop.
docs/http.md tells the rest.
"""
import json, os, signal, sys, threading, time, urllib.error, urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8288"
TOKEN = os.environ.get("REMUDA_TOKEN", "")  # to join with, where the plane asks for one
NAME = sys.argv[2] if len(sys.argv) > 2 else f"speller-{os.getpid()}"


def call(method, path, body=None, token=""):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token or TOKEN}"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=40) as answer:  # longer than any beat waits
        return json.load(answer)


class Attempt(threading.Thread):
    """The work itself, beside the beats: a worker that is busy must not look dead."""

    def __init__(self, order):
        super().__init__(daemon=True)
        self.id = {"job": order["job"], "attempt": order["attempt"]}
        self.workflow, self.cancelled, self.finished = order["workflow"], threading.Event(), None
        self.held = {**self.id, "progress": 0, "step": 0}
        self.start()

    def run(self):
        text = json.dumps(self.workflow)
        for step in range(1, len(text) + 1):
            if self.cancelled.wait(0.05):
                self.finished = {**self.id, "outcome": "cancelled"}
                return
            # `step` has to rise, or the attempt counts as stuck.
            self.held = {**self.id, "progress": step / len(text), "step": step, "phase": "spelling"}
        # What goes wrong is told as "outcome": "failed", "cause": "job" (or "service"), "message": "..."
        self.finished = {**self.id, "outcome": "completed", "result": {"backwards": text[::-1]}}


def work():
    joined, running, seq = None, None, 0
    try:
        while True:
            # Sent again and again until it is settled; until then the slot is taken.
            finished = [running.finished] if running and running.finished else []
            held = [running.held] if running and not finished else []
            try:
                if not joined:
                    join = {"worker": NAME, "services": ["exec"], "slots": 1, "held": held}
                    joined = call("POST", "/remuda/v1/workers", join)
                    print(f"joined as {NAME}, incarnation {joined['incarnation']}", flush=True)
                seq += 1
                beat = {"incarnation": joined["incarnation"], "seq": seq, "term": joined["term"]}
                beat.update(held=held, finished=finished)
                # The line stays open until there are orders; who holds something beats every second.
                path = f"/remuda/v1/workers/{NAME}/beat?wait={1 if held else 25}"
                reply = call("POST", path, beat, joined["token"])
            except urllib.error.HTTPError as error:
                problem = json.load(error)["error"]
                if problem["code"] == "unknown_worker":  # the plane forgot us: join again, with what we hold
                    joined = None
                elif error.code in (400, 403, 410, 422):  # replaced by another of our name, or not understood
                    return print(f"stopped: {problem['message']}")
                time.sleep(1)
                continue
            except OSError as error:  # the plane is away; what we hold goes on
                print(f"cannot reach the plane: {error}", flush=True)
                time.sleep(1)
                continue
            joined["term"] = reply["term"]
            is_ours = lambda it: running and it.items() >= running.id.items()
            if any(map(is_ours, reply.get("cancel", []))):
                running.cancelled.set()
            if any(map(is_ours, reply.get("settled", []))):
                running = None  # recorded or refused: either way it may be forgotten
            for order in reply.get("start", []):
                running = running or Attempt(order)  # an order that comes again is the same order
            if reply.get("drain") and not running:
                return print("drained")
    except KeyboardInterrupt:
        print("stopped")
    finally:
        try:
            if joined:
                call("DELETE", f"/remuda/v1/workers/{NAME}", token=joined["token"])
        except OSError:
            pass  # not there any more, or not ours any more: nothing to say goodbye to


if __name__ == "__main__":
    for asked in (signal.SIGINT, signal.SIGTERM):  # also where a shell began it with Ctrl-C ignored
        signal.signal(asked, signal.default_int_handler)
    work()
