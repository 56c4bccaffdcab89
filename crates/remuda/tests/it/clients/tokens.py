"""What comfy-sdk meets where a plane asks who is there: no key, a wrong one, one's own, another tenant's.

tokens.py FOLDER KEY ANOTHER_KEY, with COMFY_BASE_URL in the environment
"""

import sys
from pathlib import Path

from comfy_sdk import Comfy, NotFound, Unauthorized

folder, mine, theirs = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


def refused(kind, ask):
    try:
        ask()
    except kind as refusal:
        print(kind.__name__, refusal, flush=True)
        return
    raise AssertionError(f"{kind.__name__} should have been raised")


def picture(client):
    workflow = client.workflows.from_file(folder / "workflow_api.json")
    workflow.json["1"] = {
        "class_type": "EmptyImage",
        "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 7},
    }
    workflow.set_input("3", "seconds", 0.1)
    return workflow


refused(Unauthorized, lambda: Comfy().jobs.get("nothing"))
refused(Unauthorized, lambda: Comfy(api_key="wrong").submit(picture(Comfy())))

with Comfy(api_key=mine) as client, Comfy(api_key=theirs) as other:
    job = client.submit(picture(client))
    for event in job.events():
        pass
    (output,) = job.result().outputs
    assert output.to_bytes().startswith(b"\x89PNG")
    refused(NotFound, lambda: other.jobs.get(job.id))
    refused(NotFound, lambda: other.assets.get(output.id))
    assert [it.id for it in client.list_jobs()] == [job.id]
    assert list(other.list_jobs()) == []
print("done", flush=True)
