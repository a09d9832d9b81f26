"""instructor against BASE_URL, in every mode that needs no further service. Prints one line, or raises."""

from importlib.metadata import version

import instructor
import openai
from instructor import Mode

from kit import BAD_TEMPERATURE, BASE_URL, KEY, MODEL, OSLO, QUESTION, Weather, check, refused

plain = openai.OpenAI(base_url=BASE_URL, api_key=KEY)
asked = dict(model=MODEL, messages=[{"role": "user", "content": QUESTION}])

for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.JSON, Mode.RESPONSES_TOOLS):
    client = instructor.from_openai(plain, mode=mode)
    written = client.chat.completions.create(response_model=Weather, max_retries=0, **asked)
    check(written.model_dump(), OSLO.model_dump())
    if mode is Mode.RESPONSES_TOOLS:
        continue
    read, whole = client.chat.completions.create_with_completion(response_model=Weather, max_retries=0, **asked)
    check(read.model_dump(), OSLO.model_dump())
    assert whole.usage.completion_tokens > 1, whole.usage
    parts = list(client.chat.completions.create_partial(response_model=Weather, max_retries=0, **asked))
    check(parts[-1].model_dump(), OSLO.model_dump())
    assert any(part.celsius is None for part in parts), "the stream shows what is there so far"

client = instructor.from_openai(plain)
with refused(Exception, "nobody"):
    client.chat.completions.create(response_model=Weather, max_retries=0, **asked | {"model": "nobody"})
with refused(Exception, "temperature"):
    client.chat.completions.create(response_model=Weather, max_retries=0, temperature=BAD_TEMPERATURE, **asked)
print(f"instructor {version('instructor')}: ok")
