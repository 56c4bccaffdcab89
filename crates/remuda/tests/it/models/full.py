"""Asks for more than may wait; what did not fit is taken once there is room again."""

import json
import os
import sys
import threading
import urllib.request

import openai

model = sys.argv[1]
client = openai.OpenAI(max_retries=0)
patient = openai.OpenAI(max_retries=10)
# More letters than fit twice.
many = ["x" * 1000] * 600
busy = threading.Thread(target=lambda: client.embeddings.create(model=model, input="!busy 12000"))
busy.start()


def is_busy():
    with urllib.request.urlopen(os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/remuda/v1/models") as answer:
        models = json.load(answer)["models"]
    return any(copy["state"] == "busy" for served in models for copy in served["here"]["copies"])


while not is_busy():
    assert busy.is_alive(), "it was answered before anybody saw it at work"
waiting = []
refused = None
while refused is None:
    try:
        client.embeddings.create(model=model, input=many, extra_body={"deadline_seconds": 0.5})
        raise AssertionError("it should have waited behind the busy one")
    except openai.RateLimitError as error:
        refused = error
    except openai.InternalServerError:
        # It had room, and nobody to answer it in time: next to it another one goes in.
        thread = threading.Thread(target=lambda: patient.embeddings.create(model=model, input=many))
        thread.start()
        waiting.append(thread)
        assert len(waiting) < 10, "it never was full"
assert refused.code == "rate_limit_exceeded", refused
assert int(refused.response.headers["retry-after"]) >= 1
print(type(refused).__name__)
for thread in [busy, *waiting]:
    thread.join()
assert len(patient.embeddings.create(model=model, input=many).data) == len(many)
print("done")
