"""Tells ComfyScript's own tests, as a plugin of pytest, which server to ask: they expect one on port 8188."""

import os

import comfy_script.client as client

client.client = client.Client(os.environ["COMFY_BASE_URL"])
