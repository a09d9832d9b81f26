"""Haystack's OpenAIChatGenerator against BASE_URL. Prints one line, or raises."""

from importlib.metadata import version

import openai
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

from kit import BAD_TEMPERATURE, BASE_URL, KEY, MODEL, OSLO, QUESTION, RESULT, TALK, TALK_TOKENS, Tool, Weather, check, refused

call = Tool()


@tool
def get_weather(town: str) -> str:
    """The weather of a town."""
    return call(town)


def make(**more) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(**dict(api_base_url=BASE_URL, api_key=Secret.from_token(KEY), model=MODEL) | more)


messages = [ChatMessage.from_user(QUESTION)]
[answer] = make().run(messages)["replies"]
check(answer.text, TALK)
check(answer.meta["usage"]["completion_tokens"], TALK_TOKENS)
pieces = []
[answer] = make(streaming_callback=lambda chunk: pieces.append(chunk.content)).run(messages)["replies"]
check((answer.text, "".join(pieces)), (TALK, TALK))

[answer] = make(tools=[get_weather]).run(messages)["replies"]
[wanted] = answer.tool_calls
check((wanted.tool_name, wanted.arguments), ("get_weather", {"town": "Oslo"}))
result = ChatMessage.from_tool(tool_result=get_weather.invoke(**wanted.arguments), origin=wanted)
[answer] = make(tools=[get_weather]).run([*messages, answer, result])["replies"]
check(answer.text, RESULT)
call.check_once()
forced = {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
[answer] = make(tools=[get_weather], generation_kwargs=forced).run(messages)["replies"]
check([(call.tool_name, call.arguments) for call in answer.tool_calls], [("get_weather", {"town": "Oslo"})])
agent = Agent(chat_generator=make(), tools=[get_weather])
check(agent.run(messages=messages)["messages"][-1].text, RESULT)
call.check_once()

[answer] = make(generation_kwargs={"response_format": Weather}).run(messages)["replies"]
check(Weather.model_validate_json(answer.text), OSLO)
with refused(openai.NotFoundError, "nobody"):
    make(model="nobody").run(messages)
with refused(openai.BadRequestError, "temperature"):
    make(generation_kwargs={"temperature": BAD_TEMPERATURE}).run(messages)
print(f"haystack-ai {version('haystack-ai')}: ok")
