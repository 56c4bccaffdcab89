"""A script as users of comfy-api-simplified write it: upload a picture, run a workflow with it, keep what comes out.

simplified.py URL FOLDER
"""

import sys
from pathlib import Path

from comfy_api_simplified import ComfyApiWrapper, ComfyWorkflowWrapper
from PIL import Image

url, folder = sys.argv[1], Path(sys.argv[2])
photo = folder / "photo.png"
Image.new("RGB", (64, 48), (10, 20, 30)).save(photo)

api = ComfyApiWrapper(url)
assert "ImageInvert" in api.get_object_info("ImageInvert"), "its node classes should be told"
assert api.get_system_stats()["devices"], "its devices should be told"

uploaded = api.upload_image(photo)
workflow = ComfyWorkflowWrapper(folder / "workflow_api.json")
workflow.set_node_param("Load Image", "image", f"{uploaded['subfolder']}/{uploaded['name']}")
print("submits", flush=True)
images = api.queue_and_wait_images(workflow, "Save Image")

assert len(images) == 1, list(images)
for name, content in images.items():
    (folder / "out.png").write_bytes(content)
    with Image.open(folder / "out.png") as picture:
        assert picture.size == (64, 48), picture.size
        assert picture.getpixel((0, 0)) == (245, 235, 225), picture.getpixel((0, 0))
    print("saved", name, flush=True)
queue = api.get_queue()
assert queue["queue_running"] == [] and queue["queue_pending"] == [], queue
