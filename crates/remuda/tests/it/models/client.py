"""What OpenAI's documentation shows, asked of a plane with a model for texts and one for conversations."""

import base64
import struct
import sys

import openai

embed, chat = sys.argv[1:3]
client = openai.OpenAI(max_retries=0)


def raises(kind, ask, *words):
    try:
        ask()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is missing in {error}"
        return error
    raise AssertionError(f"{kind.__name__} was expected")


print("models", *sorted(model.id for model in client.models.list()))
assert client.models.retrieve(embed).id == embed
raises(openai.NotFoundError, lambda: client.models.retrieve("nothing"), embed)

texts = ["one", "another text"]
floats = client.embeddings.create(model=embed, input=texts, encoding_format="float")
assert [item.index for item in floats.data] == [0, 1]
assert floats.usage.prompt_tokens > 0 and floats.usage.total_tokens == floats.usage.prompt_tokens
for item in floats.data:
    assert abs(sum(number * number for number in item.embedding) - 1) < 1e-5
letters = client.embeddings.create(model=embed, input=texts, encoding_format="base64")
for item, other in zip(floats.data, letters.data):
    content = base64.b64decode(other.embedding) if isinstance(other.embedding, str) else None
    numbers = struct.unpack(f"<{len(content) // 4}f", content) if content else other.embedding
    assert all(abs(a - b) < 1e-7 for a, b in zip(item.embedding, numbers)), (item, numbers)
    assert len(item.embedding) == len(numbers)
one = client.embeddings.create(model=embed, input="one")
assert len(one.data) == 1
print("floats equal base64")
short = client.embeddings.create(model=embed, input="one", dimensions=4).data[0].embedding
assert len(short) == 4 and abs(sum(number * number for number in short) - 1) < 1e-5

messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo wörld"}]
whole = client.chat.completions.create(model=chat, messages=messages, temperature=0, max_tokens=64)
answer = whole.choices[0].message.content
assert answer and whole.choices[0].message.role == "assistant"
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
stream = client.chat.completions.create(
    model=chat, messages=messages, temperature=0, max_tokens=64, stream=True, stream_options={"include_usage": True}
)
chunks = list(stream)
assert chunks[0].choices[0].delta.role == "assistant"
said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert said == answer, (said, answer)
reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])
assert chunks[-1].usage == whole.usage and not chunks[-1].choices
assert len({chunk.id for chunk in chunks}) == 1
cut = client.chat.completions.create(model=chat, messages=messages, temperature=0, max_completion_tokens=2)
assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 2
print("streamed")

raises(openai.NotFoundError, lambda: client.embeddings.create(model="nothing", input="x"), embed, chat)
raises(openai.BadRequestError, lambda: client.embeddings.create(model=embed, input=[]), "input")
raises(openai.BadRequestError, lambda: client.chat.completions.create(model=chat, messages=messages, n=2), "n")
raises(openai.BadRequestError, lambda: client.images.generate(model=chat, prompt="a horse"), chat)
refusal = raises(openai.BadRequestError, lambda: client.chat.completions.create(model=embed, messages=messages))
assert refusal.param == "model", refusal
print("refused")
print("done")
