"""The official Python client's embeddings, unchanged, against BASE_URL: a service whose model pools.

Prints one line, or raises."""

import math
import os

import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=2, timeout=120)
TEXTS = ["The sea", "the mountains", "The sea"]


def main() -> None:
    model = client.models.list().data[0].id
    # Without an encoding_format the client asks for base64 and reads it.
    made = client.embeddings.create(model=model, input=TEXTS)
    vectors = [one.embedding for one in made.data]
    assert [one.index for one in made.data] == [0, 1, 2] and made.object == "list", made
    assert vectors[0] == vectors[2] != vectors[1], "the same text has the same vector"
    assert all(abs(math.hypot(*vector) - 1) < 1e-5 for vector in vectors), "vectors have the length 1"
    assert made.usage.prompt_tokens == made.usage.total_tokens > 0, made.usage
    floats = client.embeddings.create(model=model, input=TEXTS[1], encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(floats, vectors[1], strict=True)) < 1e-6
    ids = client.embeddings.create(model=model, input=[1, 2, 3], user="someone")
    assert ids.usage.prompt_tokens == 3, ids.usage
    try:
        client.embeddings.create(model=model, input="x", dimensions=1)
        raise AssertionError("dimensions were cut")
    except openai.BadRequestError as error:
        assert error.param == "dimensions", error
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
        raise AssertionError("a model that pools generated text")
    except openai.BadRequestError as error:
        assert error.code == "no_generation", error
    print(f"openai-python {openai.__version__}: embeddings of {len(vectors[0])} numbers, as base64 and as floats")


main()
