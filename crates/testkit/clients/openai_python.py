"""The official Python client, unchanged, against BASE_URL: completions, chat and responses, whole and streamed.

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


def check_types(answer) -> None:
    """Holds an answer against the client's own types, which it does not check by itself."""
    type(answer).model_validate(answer.to_dict())


def check_responses(model: str):
    asked = dict(model=model, instructions="You are a poet.", input="Speak of the sea.", temperature=0)
    asked |= dict(max_output_tokens=TOKENS, metadata={"a": "b"})
    whole = client.responses.create(**asked)
    check_types(whole)
    assert whole.id.startswith("resp_") and whole.model == model and whole.metadata == {"a": "b"}, whole
    assert whole.status in ("completed", "incomplete") and whole.output_text, whole
    assert 0 < whole.usage.output_tokens <= TOKENS, whole
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens, whole
    events = list(client.responses.create(**asked, stream=True))
    for number, event in enumerate(events):
        assert event.sequence_number == number, event
        check_types(event)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"], kinds
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", whole.status], kinds
    assert kinds.count("output_text.delta") > 1, kinds
    with client.responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text, (text, whole.output_text)
    return whole


def check_conversation(model: str) -> None:
    """An answer that is kept, gone on from, read and deleted."""
    first = check_responses(model)
    assert client.responses.retrieve(first.id) == first
    asked = dict(model=model, previous_response_id=first.id, input="Once more.", max_output_tokens=4, temperature=0)
    second = client.responses.create(**asked)
    items = [dict(role="user", content="Speak of the sea."), *(item.to_dict() for item in first.output)]
    items.append(dict(role="user", content="Once more."))
    spelled = client.responses.create(**asked | dict(previous_response_id=None, input=items, store=False))
    assert spelled.output_text == second.output_text, (spelled, second)
    assert spelled.usage.input_tokens == second.usage.input_tokens, (spelled, second)
    listed = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.role for item in listed] == ["user", "assistant", "user"], listed
    client.responses.delete(first.id)
    for lost in (first.id, spelled.id):
        try:
            client.responses.retrieve(lost)
        except openai.NotFoundError:
            continue
        raise AssertionError("a response is kept that should not be")
    refused(openai.BadRequestError, lambda: client.responses.create(**asked), "previous_response_id")
    background = lambda: client.responses.create(model=model, input="x", background=True)
    refused(openai.BadRequestError, background, "background")
    searching = lambda: client.responses.create(model=model, input="x", tools=[{"type": "web_search"}])
    refused(openai.BadRequestError, searching, "tools[0].type")


def check_response_calls(model: str) -> None:
    tool = {"type": "function", **TOOL_OF_WORDS["function"], "strict": True}
    asked = dict(model=model, input="Weather in Ulm?", tools=[tool], tool_choice="required", parallel_tool_calls=False)
    asked |= dict(max_output_tokens=200, temperature=0)
    whole = client.responses.create(**asked)
    check_types(whole)
    [call] = whole.output
    assert call.type == "function_call" and json.loads(call.arguments)["sky"] in ("blue", "grey"), whole
    for event in client.responses.create(**asked, stream=True):
        check_types(event)
    with client.responses.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        [streamed] = stream.get_final_response().output
    assert streamed.name == "get_weather" and "".join(pieces) == streamed.arguments == call.arguments, streamed
    output = [{"type": "function_call_output", "call_id": call.call_id, "output": "blue"}]
    asked |= dict(previous_response_id=whole.id, input=output, tool_choice="none", max_output_tokens=4)
    assert client.responses.create(**asked).output[0].type == "message"
    schema = {"type": "json_schema", "name": "sky", "schema": tool["parameters"]}
    written = client.responses.create(model=model, input="x", text={"format": schema}, max_output_tokens=200)
    assert json.loads(written.output_text)["sky"] in ("blue", "grey"), written


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
check_conversation(MODEL)
check_response_calls(MODEL)
leave_early(MODEL)
check_completions(MODEL)
print(f"openai-python {openai.__version__}: ok")
