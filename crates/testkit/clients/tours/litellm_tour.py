"""LiteLLM against BASE_URL: the SDK, and its proxy, which is started here. Prints a line for each, or raises."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

# Read when litellm is loaded: nothing is fetched from other hosts.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import litellm
import openai

from kit import BAD_TEMPERATURE, BASE_URL, KEY, MODEL, OSLO, QUESTION, RESULT, ROOT, TALK, TALK_TOKENS, Tool, Weather, check, refused

call = Tool()
# Of the proxy, which starts only with one that is hard to guess.
PROXY_KEY = "sk-" + secrets.token_hex(32)
MESSAGES = [{"role": "user", "content": QUESTION}]
FUNCTION = {
    "name": "get_weather",
    "description": "The weather of a town.",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def check_chats(ask) -> None:
    """`ask` is litellm.completion or the client's, of the same shape."""
    answer = ask(messages=MESSAGES)
    check(answer.choices[0].message.content, TALK)
    check(answer.usage.completion_tokens, TALK_TOKENS)
    pieces, usage = [], None
    for chunk in ask(messages=MESSAGES, stream=True, stream_options={"include_usage": True}):
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        usage = getattr(chunk, "usage", None) or usage
    check("".join(pieces), TALK)
    assert len(pieces) > 1, pieces
    check(usage.completion_tokens, TALK_TOKENS)

    said = ask(messages=MESSAGES, tools=TOOLS).choices[0].message
    [wanted] = said.tool_calls
    check((wanted.function.name, json.loads(wanted.function.arguments)), ("get_weather", {"town": "Oslo"}))
    result = {"role": "tool", "tool_call_id": wanted.id, "content": call(**json.loads(wanted.function.arguments))}
    turns = [*MESSAGES, said.model_dump(exclude_none=True), result]
    check(ask(messages=turns, tools=TOOLS).choices[0].message.content, RESULT)
    call.check_once()
    for choice in ("required", NAMED):
        [wanted] = ask(messages=MESSAGES, tools=TOOLS, tool_choice=choice).choices[0].message.tool_calls
        check((wanted.function.name, json.loads(wanted.function.arguments)), ("get_weather", {"town": "Oslo"}))
    schema = {"name": "weather", "strict": True, "schema": Weather.model_json_schema()}
    written = ask(messages=MESSAGES, response_format={"type": "json_schema", "json_schema": schema})
    check(Weather.model_validate_json(written.choices[0].message.content), OSLO)


def check_sdk(provider: str) -> None:
    known = dict(model=f"{provider}/{MODEL}", api_base=BASE_URL, api_key=KEY)
    check_chats(lambda **asked: litellm.completion(**known | asked))
    written = litellm.completion(messages=MESSAGES, response_format=Weather, **known)
    check(Weather.model_validate_json(written.choices[0].message.content), OSLO)
    answer = litellm.responses(input=QUESTION, **known)
    check(answer.output[-1].content[0].text, TALK)
    deltas = [event.delta for event in litellm.responses(input=QUESTION, stream=True, **known)
              if event.type == "response.output_text.delta"]
    check("".join(deltas), TALK)
    with refused(litellm.NotFoundError, "nobody"):
        litellm.completion(messages=MESSAGES, **known | {"model": f"{provider}/nobody"})
    with refused(litellm.BadRequestError, "temperature"):
        litellm.completion(messages=MESSAGES, temperature=BAD_TEMPERATURE, **known)
    with refused(litellm.ContextWindowExceededError, "16384"):
        litellm.completion(messages=MESSAGES, max_tokens=20000, **known)


def check_sdk_messages() -> None:
    known = dict(model=f"anthropic/{MODEL}", api_base=ROOT, api_key=KEY)
    check_chats(lambda **asked: litellm.completion(**known | asked))
    with refused(litellm.NotFoundError, "nobody"):
        litellm.completion(messages=MESSAGES, **known | {"model": "anthropic/nobody"})


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def check_proxy(url: str, name: str) -> None:
    """What a program sees that knows only the proxy; the deployment is in use to the end, no error cools it down."""
    client = openai.OpenAI(base_url=url + "/v1", api_key=PROXY_KEY, max_retries=0, timeout=120)
    check_chats(lambda **asked: client.chat.completions.create(model=name, **asked))
    answer = client.responses.create(model=name, input=QUESTION)
    check(answer.output_text, TALK)
    with client.responses.stream(model=name, input=QUESTION) as stream:
        check(stream.get_final_response().output_text, TALK)
    tool = {"type": "function", **FUNCTION}
    [wanted] = client.responses.create(model=name, input=QUESTION, tools=[tool]).output
    check((wanted.name, json.loads(wanted.arguments)), ("get_weather", {"town": "Oslo"}))
    messages = anthropic.Anthropic(base_url=url, api_key=PROXY_KEY, max_retries=0, timeout=120).messages
    said = messages.create(model=name, max_tokens=200, messages=MESSAGES)
    check(said.content[0].text, TALK)
    offered = {"name": "get_weather", "input_schema": FUNCTION["parameters"]}
    said = messages.create(model=name, max_tokens=200, messages=MESSAGES, tools=[offered])
    check([block.input for block in said.content if block.type == "tool_use"], [{"town": "Oslo"}])
    for _ in range(5):
        try:
            client.chat.completions.create(model=name, messages=MESSAGES, temperature=BAD_TEMPERATURE)
        except openai.BadRequestError as error:
            assert "temperature" in str(error), error
        else:
            raise AssertionError("BadRequestError expected")
    check(client.chat.completions.create(model=name, messages=MESSAGES).choices[0].message.content, TALK)


def proxied() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        models = [
            {"model_name": name, "litellm_params": {"model": f"{name}/{MODEL}", "api_base": BASE_URL, "api_key": KEY}}
            for name in ("openai", "hosted_vllm")
        ]
        config = Path(folder, "config.json")
        # JSON is YAML.
        config.write_text(json.dumps({"model_list": models, "litellm_settings": {"num_retries": 0, "telemetry": False}}))
        start = [sys.executable, "-c", "from litellm import run_server; run_server()"]
        with Path(folder, "log").open("w") as log:
            proxy = subprocess.Popen([*start, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
                                     stdout=log, stderr=log, cwd=folder, env=os.environ | {"LITELLM_MASTER_KEY": PROXY_KEY})
        try:
            deadline = time.monotonic() + 180
            while not is_up(url + "/health/readiness"):
                assert proxy.poll() is None and time.monotonic() < deadline, Path(folder, "log").read_text()[-4000:]
                time.sleep(0.5)
            for name in ("openai", "hosted_vllm"):
                check_proxy(url, name)
        finally:
            proxy.terminate()
            proxy.wait(60)


for provider in ("openai", "hosted_vllm", "custom_openai"):
    check_sdk(provider)
check_sdk_messages()
print(f"litellm {version('litellm')}: ok")
proxied()
print(f"litellm {version('litellm')}, proxy: ok")
