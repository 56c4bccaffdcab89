"""A script as users of comfyui_utils write it: a prompt, followed by callbacks; then two at once. Refusals read as those of
the server.

utils.py URL SERVER
"""

import asyncio
import copy
import io
import sys

from comfyui_utils.comfy import Callbacks, ComfyAPI
from PIL import Image

url, server = (address.removeprefix("http://") for address in sys.argv[1:])
GRAPH = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 48, "batch_size": 1, "color": 0x102030}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "utils"}},
}


class Told(Callbacks):
    def __init__(self):
        self.positions, self.nodes, self.ends = [], [], []

    async def queue_position(self, position):
        self.positions.append(position)

    async def in_progress(self, node_id, progress, total):
        self.nodes.append(node_id)

    async def completed(self, outputs, cached):
        self.ends.append(outputs)


async def run(api, graph):
    told = Told()
    await asyncio.wait_for(api.submit(graph, told), 30)
    (outputs,) = told.ends
    pictures = []

    async def keep(file: io.BytesIO):
        pictures.append(Image.open(io.BytesIO(file.read())))

    await api.fetch(outputs["images"][0], keep)
    return told, pictures[0]


async def refusal(api, node, key, value):
    graph = copy.deepcopy(GRAPH)
    graph[node]["inputs"][key] = value
    try:
        await api.submit(graph, Told())
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{key}={value} should have been refused")


async def main():
    api, bare = ComfyAPI(url), ComfyAPI(server)
    # A prompt that ends before the socket is open is looked for in the history, by its graph.
    for color in range(6):
        graph = copy.deepcopy(GRAPH)
        graph["1"]["inputs"]["color"] = color // 2
        told, picture = await run(api, graph)
        assert set(told.positions) <= {0}, told.positions
        assert picture.size == (64, 48) and picture.getpixel((0, 0)) == (255, 255, 255 - color // 2), picture
    slow = [copy.deepcopy(GRAPH) for _ in range(2)]
    for color, graph in enumerate(slow):
        graph["1"]["inputs"]["color"] = 0x40 + color
        graph["2"] = {"class_type": "RemudaSleep", "inputs": {"image": ["1", 0], "seconds": 1.5, "steps": 15, "preview": False}}
    both = await asyncio.gather(*(run(api, graph) for graph in slow))
    assert [picture.getpixel((0, 0)) for _, picture in both] == [(0, 0, 0x40), (0, 0, 0x41)], both
    assert any(1 in told.positions for told, _ in both), [told.positions for told, _ in both]
    for wrong in [("1", "width", "wide"), ("1", "batch_size", 0), ("2", "image", ["1", 7]), ("1", "width", None)]:
        assert await refusal(api, *wrong) == await refusal(bare, *wrong), wrong
    print("done", flush=True)


asyncio.run(main())
