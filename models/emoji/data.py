"""Pictures with names out of the npm package @iconify-json/fluent-emoji-flat (Microsoft's Fluent emoji, MIT) to data.npz."""

import io
import json
import sys

import numpy as np
import resvg_py
from PIL import Image

KINDS = ["Activities", "Animals & Nature", "Food & Drink", "Objects", "Smileys & Emotion", "Travel & Places"]
SIDE = 64

package, out = sys.argv[1:]
icons = json.load(open(f"{package}/icons.json"))
names = {name for kind, names in json.load(open(f"{package}/metadata.json"))["categories"].items() if kind in KINDS for name in names}
side = icons.get("width", 32)
pictures, captions = [], []
for name in sorted(names & icons["icons"].keys()):
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}">{icons["icons"][name]["body"]}</svg>'
    png = resvg_py.svg_to_bytes(svg_string=svg, width=SIDE * 4, height=SIDE * 4, skip_system_fonts=True)
    picture = Image.open(io.BytesIO(bytes(png))).convert("RGBa").resize((SIDE, SIDE), Image.Resampling.BOX)
    pictures.append(np.asarray(picture.convert("RGBA")))
    captions.append(name.replace("-", " "))
np.savez_compressed(out, pictures=np.stack(pictures), captions=np.array(captions))
print(len(captions), captions[::50])
