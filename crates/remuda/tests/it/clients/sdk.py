"""A script as the documentation of comfy-sdk writes it: a workflow with a picture of ours, followed to its end.

sdk.py FOLDER, with COMFY_BASE_URL in the environment
"""

import sys
from pathlib import Path

from blake3 import blake3
from comfy_sdk import Comfy, OutputReady, Preview, Progress, StatusChange
from PIL import Image

folder = Path(sys.argv[1])
photo = folder / "photo.png"


def check(path, wanted):
    """Of one colour; servers that reckon with fractions are off by one now and then."""
    with Image.open(path) as picture:
        assert picture.size == (64, 48), picture.size
        colour = picture.getpixel((0, 0))
        assert all(abs(is_ - be) <= 1 for is_, be in zip(colour, wanted)), colour


Image.new("RGB", (64, 48), (10, 20, 30)).save(photo)

with Comfy() as client:
    workflow = client.workflows.from_file(folder / "workflow_api.json")
    workflow.set_input("1", "image", client.assets.from_file(photo))
    workflow.set_input("3", "preview", True)
    job = client.submit(workflow)
    print("submitted", job.id, flush=True)

    seen = []
    for event in job.events():
        seen.append(type(event))
        match event:
            case Progress():
                print("progress", event.value, event.current_node, flush=True)
            case Preview():
                assert event.to_pil().format == "JPEG", event.content_type
            case OutputReady():
                print("output", event.output.name, flush=True)
            case StatusChange():
                print("status", event.status, flush=True)
    assert seen[0] is StatusChange and seen[-1] is StatusChange, seen
    for kind in (Progress, Preview, OutputReady):
        assert kind in seen, f"no {kind.__name__} in {seen}"

    job.result()
    (output,) = job.get_outputs("4")
    assert [output.id] == [it.id for it in job.outputs], job.outputs
    assert (output.type, output.content_type, output.job_id) == ("image", "image/png", job.id), output
    out = output.to_file(folder / "out.png")
    content = out.read_bytes()
    assert len(content) == output.size_bytes, output
    assert output.to_bytes(range=(0, 7)) == b"\x89PNG\r\n\x1a\n", "a part of it should be had alone"
    assert client.assets.get(output.id).hash == "blake3:" + blake3(content).hexdigest()
    check(out, (245, 235, 225))

    # What was sent before is not sent again; what came out goes in once more.
    again = client.assets.from_file(photo)
    again.commit()
    assert again.created_new is False, again
    workflow.set_input("1", "image", client.assets.from_file(out))
    workflow.set_input("3", "seconds", 0.1)
    back = client.run(workflow)
    check(back.get_outputs("4")[0].to_file(folder / "back.png"), (10, 20, 30))

    found = client.jobs.get(job.id)
    assert found.status == "succeeded", found
    assert found.get_workflow().graph["4"]["class_type"] == "SaveImage"
    print("done", flush=True)
