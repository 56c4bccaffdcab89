"""What an integrator catches: every refusal that comfy-sdk has a class for and a plane can give, and a job called off.

refusals.py FOLDER, with COMFY_BASE_URL in the environment
"""

import asyncio
import sys
from pathlib import Path

from comfy_sdk import (
    AsyncComfy,
    Comfy,
    IdempotencyKeyReuse,
    InvalidWorkflow,
    JobFailed,
    MissingAsset,
    NotFound,
)

folder = Path(sys.argv[1])
NOBODY = "7f3d2c1b-9a8e-4d6f-b012-3c4d5e6f7a8b"


def refused(kind, ask):
    try:
        ask()
    except kind as refusal:
        print(kind.__name__, refusal, flush=True)
        return refusal
    raise AssertionError(f"{kind.__name__} should have been raised")


def picture(client, **inputs):
    workflow = client.workflows.from_file(folder / "workflow_api.json")
    workflow.json["1"] = {
        "class_type": "EmptyImage",
        "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 7},
    }
    workflow.json["3"]["inputs"] |= inputs
    return workflow


with Comfy() as client:
    refused(NotFound, lambda: client.jobs.get(NOBODY))
    refused(NotFound, lambda: client.assets.get(NOBODY))

    unknown = picture(client)
    unknown.json["2"]["class_type"] = "NobodyHasThis"
    refusal = refused(InvalidWorkflow, lambda: client.submit(unknown))
    assert "2" in refusal.details["node_errors"], refusal.details
    loose = picture(client)
    del loose.json["2"]["inputs"]["image"]
    refusal = refused(InvalidWorkflow, lambda: client.submit(loose))
    assert "2" in refusal.details["node_errors"], refusal.details

    lost = client.workflows.from_file(folder / "workflow_api.json")
    lost.set_input("1", "image", {"__type": "core/ASSET", "info": {"id": NOBODY}})
    refused(MissingAsset, lambda: client.submit(lost))

    # A key is taken by the job it made, and by no refusal.
    refused(InvalidWorkflow, lambda: client.submit(unknown, idempotency_key="mine"))
    quick = picture(client, seconds=0.1)
    client.submit(quick, idempotency_key="mine").result()
    refused(IdempotencyKeyReuse, lambda: client.submit(quick, idempotency_key="mine"))

    asset = client.assets.from_bytes(b"some bytes", filename="note.txt", content_type="text/plain")
    mine = asset.commit()
    assert client.assets.get(mine).hash == asset.hash
    asset.delete()
    refused(NotFound, lambda: client.assets.get(mine))

    failing = picture(client)
    failing.json["3"] = {"class_type": "RemudaFail", "inputs": {"image": ["2", 0], "kind": "error"}}
    failure = refused(JobFailed, lambda: client.run(failing))
    assert failure.error.node_id == "3", failure.error
    assert "failed on request" in failure.error.message, failure.error

    long = client.submit(picture(client, seconds=600.0))
    for event in long.events():
        if getattr(event, "value", 0) > 0:
            break
    long.cancel()
    assert long.status in ("canceling", "canceled"), long
    refused(JobFailed, long.result)
    assert long.status == "canceled" and long.cancel().status == "canceled", long


async def together():
    async with AsyncComfy() as client:
        jobs = [await client.submit(picture(client, seconds=0.1 + at / 100)) for at in range(5)]
        ended = await asyncio.gather(*(job.result() for job in jobs))
        contents = await asyncio.gather(*(job.get_outputs("4")[0].to_bytes() for job in ended))
        assert all(content.startswith(b"\x89PNG") for content in contents)


asyncio.run(together())
print("done", flush=True)
