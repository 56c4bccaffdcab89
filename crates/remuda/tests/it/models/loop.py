"""Asks for embeddings from four threads until a file says that it is enough. The first call that fails ends it."""

import os
import sys
import threading
import time

import openai

model = sys.argv[1]
client = openai.OpenAI(max_retries=0)
expected = client.embeddings.create(model=model, input="warm").data[0].embedding
print("asking")
failed, slowest, asked = [], [], []


def ask():
    count, longest = 0, 0.0
    while not failed and not os.path.exists("enough"):
        began = time.monotonic()
        try:
            answer = client.embeddings.create(model=model, input=["warm", f"text {count}"])
        except Exception as error:
            failed.append(repr(error))
            return
        if answer.data[0].embedding != expected or len(answer.data) != 2:
            failed.append("another answer than before")
        longest = max(longest, time.monotonic() - began)
        count += 1
    asked.append(count)
    slowest.append(longest)


threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failed:
    sys.exit(f"failed: {failed}")
print(f"{sum(asked)} calls, the slowest {max(slowest):.3f} s")
