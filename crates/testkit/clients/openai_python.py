"""The official Python client, unchanged, against BASE_URL: completions and chat, whole and streamed.

Prints one line, or raises. Works with any model: greedy answers are compared with themselves."""

import json
import os

import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0, timeout=120)
MESSAGES = [
    {"role": "system", "content": "You are a poet."},
    {"role": "user", "content": [{"type": "text", "text": "Speak of the sea."}]},
]
TOKENS = 24


def check_completions(model: str) -> None:
    asked = dict(model=model, prompt="The sea", max_tokens=TOKENS, temperature=0)
    whole = client.completions.create(**asked)
    assert whole.object == "text_completion" and whole.model == model, whole
    assert whole.choices[0].finish_reason in ("length", "stop"), whole
    assert 0 < whole.usage.completion_tokens <= TOKENS, whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole

    text, chunks, reasons, usage = "", 0, [], None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            chunks += bool(choice.text)
            text += choice.text
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].text and chunks > 1, (text, whole.choices[0].text)
    assert reasons == [whole.choices[0].finish_reason], reasons
    assert usage and usage.completion_tokens == whole.usage.completion_tokens, usage


def check_chat(model: str) -> None:
    asked = dict(model=model, messages=MESSAGES, max_completion_tokens=TOKENS, temperature=0)
    whole = client.chat.completions.create(**asked)
    assert whole.object == "chat.completion" and whole.choices[0].message.role == "assistant", whole
    assert whole.usage.prompt_tokens > 0, whole

    text, roles, reasons = "", [], []
    for chunk in client.chat.completions.create(**asked, stream=True):
        assert chunk.object == "chat.completion.chunk", chunk
        delta = chunk.choices[0].delta
        roles += [delta.role] if delta.role else []
        text += delta.content or ""
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
    assert roles == ["assistant"] and reasons == [whole.choices[0].finish_reason], (roles, reasons)


def refused(kind, call, param) -> None:
    try:
        call()
    except kind as error:
        assert error.param == param and error.type == "invalid_request_error", error.body
        return
    raise AssertionError(f"{kind.__name__} expected")


def check_errors(model: str) -> None:
    refused(openai.BadRequestError, lambda: client.completions.create(model=model, prompt="x", max_tokens=0), "max_tokens")
    refused(openai.NotFoundError, lambda: client.completions.create(model="nobody", prompt="x"), "model")


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a town",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}

# Arguments that every model brings to an end.
TOOL_OF_WORDS = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"sky": {"enum": ["blue", "grey"]}},
            "required": ["sky"],
            "additionalProperties": False,
        },
    },
}


def check_tool_messages(model: str) -> None:
    """A call and its answer go back to the model; what is wrong with a tool is named."""
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"town": "Ulm"}'}}
    messages = [
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": "Weather in Ulm?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "blue"}'},
    ]
    asked = dict(model=model, messages=messages, tools=[TOOL], tool_choice="none", max_tokens=TOKENS, temperature=0)
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].message.content is not None, answer
    twice = lambda: client.chat.completions.create(**asked | {"tools": [TOOL, TOOL]})
    refused(openai.BadRequestError, twice, "tools[1].function.name")


def check_forced_calls(model: str) -> None:
    """A grammar makes any model call a tool: of its choice, or the one that is named; whole and streamed."""
    messages = [{"role": "user", "content": "Weather in Ulm?"}]
    asked = dict(model=model, messages=messages, tools=[TOOL_OF_WORDS], max_tokens=200, temperature=0)
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice, reason in (("required", "tool_calls"), (named, "stop")):
        whole = client.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False).choices[0]
        assert whole.finish_reason == reason and whole.message.content is None, whole
        [call] = whole.message.tool_calls
        assert json.loads(call.function.arguments)["sky"] in ("blue", "grey"), call
        names, arguments, reasons = [], "", []
        stream = client.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False, stream=True)
        for chunk in stream:
            for piece in chunk.choices[0].delta.tool_calls or []:
                assert piece.index == 0, chunk
                names += [piece.function.name] if piece.function.name else []
                arguments += piece.function.arguments or ""
            reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
        assert names == ["get_weather"] and reasons == [reason], (names, reasons)
        assert arguments == call.function.arguments, (arguments, call)


def check_extensions(model: str) -> None:
    """Fields of vLLM's, and one with a typing error, as a client passes them on."""
    extra = {"return_token_ids": True, "temprature": 0}
    raw = client.completions.with_raw_response.create(model=model, prompt="The sea", max_tokens=4, extra_body=extra)
    assert raw.headers["x-pinion-ignored-fields"] == "temprature", raw.headers
    whole = raw.parse()
    assert len(whole.choices[0].token_ids) == whole.usage.completion_tokens, whole
    assert len(whole.choices[0].prompt_token_ids) == whole.usage.prompt_tokens, whole
    counts = {"include_usage": True, "continuous_usage_stats": True}
    asked = dict(model=model, messages=MESSAGES, max_tokens=4, stream=True, stream_options=counts)
    chunks = list(client.chat.completions.create(**asked))
    assert all(chunk.usage for chunk in chunks) and chunks[-1].usage.completion_tokens > 0, chunks


def leave_early(model: str) -> None:
    """What a client does that has read enough."""
    with client.completions.create(model=model, prompt="The sea", max_tokens=200, stream=True) as stream:
        next(iter(stream))


MODEL = client.models.list().data[0].id
assert client.models.retrieve(MODEL).id == MODEL
check_completions(MODEL)
check_chat(MODEL)
check_tool_messages(MODEL)
check_forced_calls(MODEL)
check_errors(MODEL)
check_extensions(MODEL)
leave_early(MODEL)
check_completions(MODEL)
print(f"openai-python {openai.__version__}: ok")
