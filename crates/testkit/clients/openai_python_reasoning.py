"""The official Python client, unchanged, against BASE_URL: reasoning and tool calls, whole and streamed.

The service has the fake backend and a template with `<think>`: a choice of one text makes the model write that text.
Prints one line, or raises."""

import json
import os

import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
THOUGHT = "The town is Ulm, über Köln.\nI call the tool."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"town": "Köln"}}\n</tool_call>'


def asked(written: str, **more) -> dict:
    messages = [{"role": "user", "content": "Weather?"}]
    body = {"guided_choice": [written]} | more.pop("extra_body", {})
    return dict(model=MODEL, messages=messages, max_tokens=400, temperature=0, extra_body=body, **more)


def whole(request: dict) -> tuple:
    answer = client.chat.completions.create(**request)
    choice = answer.choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    thought = getattr(choice.message, "reasoning_content", None)
    return thought, choice.message.content, calls, choice.finish_reason, answer.usage.completion_tokens_details.reasoning_tokens


def streamed(request: dict) -> tuple:
    thought, content, calls, reason, tokens = None, None, [], None, None
    for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            tokens = chunk.usage.completion_tokens_details.reasoning_tokens
        for choice in chunk.choices:
            piece = getattr(choice.delta, "reasoning_content", None)
            if piece:
                assert content is None and not calls, "reasoning comes first"
                thought = (thought or "") + piece
            if choice.delta.content:
                content = (content or "") + choice.delta.content
            for call in choice.delta.tool_calls or []:
                if call.function.name:
                    calls.append((call.function.name, ""))
                calls[-1] = (calls[-1][0], calls[-1][1] + (call.function.arguments or ""))
            reason = choice.finish_reason or reason
    return thought, content, calls, reason, tokens


def check(written: str, thought, content, calls, reason, **more) -> None:
    for read in (whole, streamed):
        got = read(asked(written, **more))
        assert got[:4] == (thought, content, calls, reason), (read.__name__, got)
        assert got[4] is not None and (got[4] > 0) == ("<think>" in written), got


def check_parsed() -> None:
    """The helper for streams puts the same together."""
    request = asked(f"<think>\n{THOUGHT}\n</think>\n\n{CALL}", tools=[TOOL])
    with client.chat.completions.stream(**request) as stream:
        message = stream.get_final_completion().choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"town": "Köln"}, message


CALLED = [("get_weather", '{"town": "Köln"}')]
check(f"<think>\n{THOUGHT}\n</think>\n\nIt rains.", THOUGHT, "It rains.", [], "stop")
check(f"<think>\n{THOUGHT}\n</think>\n\n{CALL}", THOUGHT, None, CALLED, "tool_calls", tools=[TOOL])
check(CALL, None, None, CALLED, "tool_calls", tools=[TOOL])
hidden = {"include_reasoning": False}
check(f"<think>\n{THOUGHT}\n</think>\n\nIt rains.", None, "It rains.", [], "stop", extra_body=hidden)
check_parsed()
print(f"openai-python {openai.__version__}, reasoning and tool calls: ok")
