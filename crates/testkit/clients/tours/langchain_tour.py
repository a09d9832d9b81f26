"""LangChain against BASE_URL: ChatOpenAI on chats and on responses, ChatAnthropic on messages. Prints one line, or raises."""

from importlib.metadata import version

import anthropic
import openai
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from kit import BAD_TEMPERATURE, BASE_URL, KEY, MODEL, OSLO, QUESTION, RESULT, ROOT, TALK, TALK_TOKENS, Tool, Weather, check, refused

call = Tool()


@tool
def get_weather(town: str) -> str:
    """The weather of a town."""
    return call(town)


def check_text(chat) -> None:
    answer = chat.invoke(QUESTION)
    check(answer.text, TALK)
    check(answer.usage_metadata["output_tokens"], TALK_TOKENS)
    whole = None
    chunks = 0
    for chunk in chat.stream(QUESTION):
        chunks += bool(chunk.text)
        whole = chunk if whole is None else whole + chunk
    assert chunks > 1, "one piece is no stream"
    check(whole.text, TALK)
    check(whole.usage_metadata["output_tokens"], TALK_TOKENS)


def check_tools(chat) -> None:
    bound = chat.bind_tools([get_weather])
    messages = [HumanMessage(QUESTION)]
    answer = bound.invoke(messages)
    [wanted] = answer.tool_calls
    check((wanted["name"], wanted["args"]), ("get_weather", {"town": "Oslo"}))
    result = get_weather.invoke(wanted)
    assert isinstance(result, ToolMessage), result
    check(bound.invoke([*messages, answer, result]).text, RESULT)
    call.check_once()
    for choice in ("any", "get_weather"):
        forced = chat.bind_tools([get_weather], tool_choice=choice).invoke(messages)
        check([(call["name"], call["args"]) for call in forced.tool_calls], [("get_weather", {"town": "Oslo"})])
    pieces = None
    for chunk in bound.stream(messages):
        pieces = chunk if pieces is None else pieces + chunk
    check([(call["name"], call["args"]) for call in pieces.tool_calls], [("get_weather", {"town": "Oslo"})])
    agent = create_agent(chat, [get_weather])
    check(agent.invoke({"messages": messages})["messages"][-1].text, RESULT)
    call.check_once()


def check_structured(chat, methods: tuple) -> None:
    for method in methods:
        check(chat.with_structured_output(Weather, method=method).invoke(QUESTION), OSLO)
    for strategy in (ProviderStrategy(Weather), ToolStrategy(Weather)):
        agent = create_agent(chat, [get_weather], response_format=strategy)
        check(agent.invoke({"messages": [HumanMessage(QUESTION)]})["structured_response"], OSLO)
        call.check_once()


def check_errors(make, library) -> None:
    with refused(library.NotFoundError, "nobody"):
        make(model="nobody").invoke(QUESTION)
    with refused(library.BadRequestError, "temperature"):
        make(temperature=BAD_TEMPERATURE).invoke(QUESTION)


def openai_chat(**more) -> ChatOpenAI:
    return ChatOpenAI(**dict(base_url=BASE_URL, api_key=KEY, model=MODEL, stream_usage=True) | more)


def openai_responses(**more) -> ChatOpenAI:
    return openai_chat(use_responses_api=True, **more)


def anthropic_chat(**more) -> ChatAnthropic:
    return ChatAnthropic(**dict(base_url=ROOT, api_key=KEY, model=MODEL, max_tokens=200) | more)


for make, library, methods in (
    (openai_chat, openai, ("json_schema", "function_calling", "json_mode")),
    (openai_responses, openai, ("json_schema", "function_calling")),
    (anthropic_chat, anthropic, ("json_schema", "function_calling")),
):
    check_text(make())
    check_tools(make())
    check_structured(make(), methods)
    check_errors(make, library)
print(f"langchain-openai {version('langchain-openai')}, langchain-anthropic {version('langchain-anthropic')}: ok")
