"""Anthropic's Python client by itself against BASE_URL: structured output and tools. Prints one line, or
raises."""

from importlib.metadata import version

import anthropic

from kit import BAD_TEMPERATURE, KEY, MODEL, OSLO, QUESTION, RESULT, ROOT, TALK, TALK_TOKENS, Tool, Weather, check, refused

client = anthropic.Anthropic(base_url=ROOT, api_key=KEY)
call = Tool()
asked = [{"role": "user", "content": QUESTION}]
fixed = dict(model=MODEL, max_tokens=1000)
TOOL = {
    "name": "get_weather",
    "description": "The weather of a town",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}

whole = client.messages.create(messages=asked, **fixed)
check((whole.content[0].text, whole.usage.output_tokens), (TALK, TALK_TOKENS))
check(client.messages.parse(messages=asked, output_format=Weather, **fixed).parsed_output, OSLO)
with client.messages.stream(messages=asked, output_format=Weather, **fixed) as stream:
    pieces = list(stream.text_stream)
    final = stream.get_final_message()
check((final.parsed_output, final.content[0].text), (OSLO, "".join(pieces)))
assert len(pieces) > 1, pieces

for choice in ("auto", "any", "tool"):
    named = {"name": "get_weather"} if choice == "tool" else {}
    # The tool first, then the answer: in words, or in the format that stands beside the tools.
    for format, result in (({}, RESULT), ({"output_format": Weather}, OSLO)):
        first = client.messages.parse(
            messages=asked, tools=[TOOL], tool_choice={"type": choice} | named, **format, **fixed
        )
        check(first.stop_reason, "tool_use")
        [made] = first.content
        check((made.name, made.input), ("get_weather", {"town": "Oslo"}))
        said = {"type": "tool_result", "tool_use_id": made.id, "content": call(**made.input)}
        messages = [*asked, {"role": "assistant", "content": first.content}, {"role": "user", "content": [said]}]
        last = client.messages.parse(messages=messages, tools=[TOOL], **format, **fixed)
        check(last.parsed_output if format else last.content[0].text, result)
        call.check_once()

with refused(anthropic.NotFoundError, "nobody"):
    client.messages.create(messages=asked, **fixed | {"model": "nobody"})
with refused(anthropic.BadRequestError, "temperature"):
    client.messages.create(messages=asked, extra_body={"temperature": BAD_TEMPERATURE}, **fixed)
print(f"anthropic {version('anthropic')}: ok")
