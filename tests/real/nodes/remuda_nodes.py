"""Nodes that go wrong on request, for tests: slow, deaf, failing, deadly, or with odd results.

The stand-in server of the test suite has the same nodes with the same inputs. None of them says when it has
changed: they are cached as any other node is.
"""

import os
import sys
import time

import numpy
import torch
from PIL import Image

import comfy.model_management
import comfy.utils
from comfy_execution.graph_utils import ExecutionBlocker
from server import PromptServer

IMAGE = ("IMAGE",)
SECONDS = ("FLOAT", {"default": 1.0, "min": 0.0, "max": 3600.0, "step": 0.001})
PREVIEW_SIDE_MAX = 512  # what the samplers ask for


class RemudaSleep:
    """Takes its time, tells how far it is, and stops at the next step when interrupted."""

    CATEGORY, FUNCTION, RETURN_TYPES = "remuda", "run", IMAGE

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "image": IMAGE,
                "seconds": SECONDS,
                "steps": ("INT", {"default": 10, "min": 1, "max": 10000}),
                "preview": ("BOOLEAN", {"default": False}),
            }
        }

    def run(self, image, seconds, steps, preview):
        picture = ("JPEG", to_picture(image), PREVIEW_SIDE_MAX) if preview else None
        progress = comfy.utils.ProgressBar(steps)
        for step in range(1, steps + 1):
            time.sleep(seconds / steps)
            comfy.model_management.throw_exception_if_processing_interrupted()
            progress.update_absolute(step, steps, picture)
        return (image,)


class RemudaHold:
    """Takes its time without a word, and does not hear an interrupt."""

    CATEGORY, FUNCTION, RETURN_TYPES = "remuda", "run", IMAGE

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": IMAGE, "seconds": SECONDS}}

    def run(self, image, seconds):
        time.sleep(seconds)
        return (image,)


class RemudaFail:
    """Fails in the way that is asked for: the job, the service's worker thread, or the whole process."""

    CATEGORY, FUNCTION, RETURN_TYPES = "remuda", "run", IMAGE

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": IMAGE, "kind": (["error", "oom", "cuda", "disk", "exit", "crash"],)}}

    def run(self, image, kind):
        if kind == "error":
            raise ValueError("failed on request")
        if kind == "oom":
            raise torch.OutOfMemoryError("Allocation on device")
        if kind == "cuda":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if kind == "disk":
            raise OSError(28, "No space left on device")
        if kind == "exit":
            sys.exit()
        os._exit(1)


class RemudaText:
    """A result that is not a file."""

    CATEGORY, FUNCTION, RETURN_TYPES, OUTPUT_NODE = "remuda", "run", (), True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {"default": ""})}}

    def run(self, text):
        return {"ui": {"text": [text]}}


class RemudaNan:
    """A result that strict JSON cannot say."""

    CATEGORY, FUNCTION, RETURN_TYPES, OUTPUT_NODE = "remuda", "run", (), True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def run(self):
        return {"ui": {"value": [float("nan")]}}


class RemudaBlocker:
    """Keeps what depends on it from being run: the service sends an error and then ends the job well."""

    CATEGORY, FUNCTION, RETURN_TYPES = "remuda", "run", IMAGE

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": IMAGE, "message": ("STRING", {"default": "blocked on request"})}}

    def run(self, image, message):
        return (ExecutionBlocker(message),)


class RemudaSilentBlocker:
    """Keeps what depends on it from being run, without a message."""

    CATEGORY, FUNCTION, RETURN_TYPES = "remuda", "run", IMAGE

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": IMAGE}}

    def run(self, image):
        return (ExecutionBlocker(None),)


class RemudaProgressText:
    """Sends a text to the client while it runs."""

    CATEGORY, FUNCTION, RETURN_TYPES = "remuda", "run", IMAGE

    @classmethod
    def INPUT_TYPES(cls):
        required = {"image": IMAGE, "text": ("STRING", {"default": ""})}
        return {"required": required, "hidden": {"unique_id": "UNIQUE_ID"}}

    def run(self, image, text, unique_id):
        PromptServer.instance.send_progress_text(text, unique_id, PromptServer.instance.client_id)
        return (image,)


def to_picture(image):
    pixels = (image[0].cpu().numpy() * 255).clip(0, 255)
    return Image.fromarray(pixels.astype(numpy.uint8))


NODE_CLASS_MAPPINGS = {
    node.__name__: node
    for node in (
        RemudaSleep,
        RemudaHold,
        RemudaFail,
        RemudaText,
        RemudaNan,
        RemudaBlocker,
        RemudaSilentBlocker,
        RemudaProgressText,
    )
}
