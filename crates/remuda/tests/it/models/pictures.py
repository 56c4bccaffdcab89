"""Has pictures drawn, as OpenAI's documentation shows it."""

import base64
import sys

import openai

model = sys.argv[1]
client = openai.OpenAI(max_retries=0)
drawn = client.images.generate(
    model=model, prompt="a wild horse", n=2, size="64x64", response_format="b64_json", extra_body={"seed": 7, "steps": 2}
)
pictures = [base64.b64decode(picture.b64_json) for picture in drawn.data]
assert len(pictures) == 2 and pictures[0] != pictures[1], "each has a seed of its own"
assert all(picture.startswith(b"\x89PNG\r\n\x1a\n") for picture in pictures)
again = client.images.generate(model=model, prompt="a wild horse", size="64x64", extra_body={"seed": 7, "steps": 2})
assert base64.b64decode(again.data[0].b64_json) == pictures[0], "the same seed draws the same"
for wrong in [{"n": 11}, {"size": "large"}, {"response_format": "url"}]:
    try:
        client.images.generate(model=model, prompt="a wild horse", **wrong)
        raise AssertionError(f"{wrong} was taken")
    except openai.BadRequestError as error:
        assert error.param in wrong, error
print("done")
