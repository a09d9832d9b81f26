"""Anthropic's Python client, unchanged, against BASE_URL: messages whole and streamed, tools, counts and errors.

Prints one line, or raises. Works with any model: greedy answers are compared with themselves."""

import os

import anthropic

# The client adds /v1 itself.
client = anthropic.Anthropic(
    base_url=os.environ["BASE_URL"].removesuffix("/v1"), api_key="none", max_retries=0, timeout=120
)
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "Speak of the sea."}]}]
TOKENS = 24
# The client has no argument for it any more.
GREEDY = {"extra_body": {"temperature": 0}}
# Arguments that every model brings to an end.
TOOL = {
    "name": "get_weather",
    "description": "The weather of a town",
    "input_schema": {
        "type": "object",
        "properties": {"sky": {"enum": ["blue", "grey"]}},
        "required": ["sky"],
        "additionalProperties": False,
    },
}


def check_messages(model: str) -> None:
    asked = dict(model=model, system="You are a poet.", messages=MESSAGES, max_tokens=TOKENS, **GREEDY)
    whole = client.messages.create(**asked)
    assert whole.type == "message" and whole.role == "assistant" and whole.model == model, whole
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.stop_sequence is None, whole
    assert 0 < whole.usage.output_tokens <= TOKENS and whole.usage.input_tokens >= 0, whole
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    texts = [[block.text for block in message.content] for message in (whole, final)]
    assert texts == [[text], [text]], (text, whole, final)
    assert final.stop_reason == whole.stop_reason, final
    assert final.usage.output_tokens == whole.usage.output_tokens, (final.usage, whole.usage)
    prompt = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert prompt(final.usage) == prompt(whole.usage), (final.usage, whole.usage)
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    assert kinds.count("content_block_delta") > 1, kinds


def check_count(model: str) -> None:
    asked = dict(model=model, system="You are a poet.", messages=MESSAGES)
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)


def check_stop_sequence(model: str) -> None:
    asked = dict(model=model, messages=MESSAGES, max_tokens=TOKENS, **GREEDY)
    text = client.messages.create(**asked).content[0].text
    middle = text[len(text) // 2 :][:3]
    stopped = client.messages.create(**asked, stop_sequences=["not in the text at all", middle])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == middle, stopped
    said = stopped.content[0].text if stopped.content else ""
    assert said == text[: text.index(middle)], (said, text)


def check_tools(model: str) -> None:
    """A grammar makes any model call a tool: of its choice, or the one that is named; whole and streamed."""
    asked = dict(model=model, messages=MESSAGES, tools=[TOOL], max_tokens=200, **GREEDY)
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
        whole = client.messages.create(**asked, tool_choice=choice)
        assert whole.stop_reason == "tool_use", whole
        [call] = whole.content
        assert call.type == "tool_use" and call.name == "get_weather", call
        assert call.input["sky"] in ("blue", "grey"), call
        with client.messages.stream(**asked, tool_choice=choice) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "tool_use" and final.content[0].input == call.input, final
        # The call and its result go back to the model.
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "calm"}
        turns = [*MESSAGES, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
        none = {"type": "none"}
        answer = client.messages.create(**asked | {"messages": turns, "max_tokens": TOKENS}, tool_choice=none)
        assert answer.content[0].type == "text", answer


def refused(kind, call, status: str, said: str) -> None:
    try:
        call()
    except kind as error:
        assert error.body["type"] == "error" and error.body["error"]["type"] == status, error.body
        assert said in error.body["error"]["message"], error.body
        assert error.request_id and error.request_id == error.body["request_id"], error.body
        return
    raise AssertionError(f"{kind.__name__} expected")


def check_errors(model: str) -> None:
    asked = dict(model=model, messages=MESSAGES, max_tokens=TOKENS)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    pictured = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
    ask = lambda **changed: lambda: client.messages.create(**asked | changed)
    bad = anthropic.BadRequestError
    refused(bad, ask(messages=pictured), "invalid_request_error", "messages.0.content.1.type")
    refused(bad, ask(max_tokens=0), "invalid_request_error", "max_tokens")
    refused(bad, ask(tools=[TOOL, TOOL]), "invalid_request_error", "tools.1.name")
    refused(anthropic.NotFoundError, ask(model="nobody"), "not_found_error", "nobody")


def leave_early(model: str) -> None:
    """What a client does that has read enough."""
    with client.messages.create(model=model, messages=MESSAGES, max_tokens=200, stream=True) as stream:
        next(iter(stream))


MODEL = client.models.list().data[0].id
check_messages(MODEL)
check_count(MODEL)
check_stop_sequence(MODEL)
check_tools(MODEL)
check_errors(MODEL)
leave_early(MODEL)
check_messages(MODEL)
print(f"anthropic-python {anthropic.__version__}: ok")
