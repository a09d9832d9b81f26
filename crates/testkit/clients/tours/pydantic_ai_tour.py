"""pydantic-ai against BASE_URL, on chats, responses and messages. Prints one line, or raises."""

import asyncio
from importlib.metadata import version

from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from kit import BAD_TEMPERATURE, BASE_URL, KEY, MODEL, OSLO, QUESTION, RESULT, ROOT, TALK, TALK_TOKENS, Tool, Weather, check, refused

call = Tool()


def get_weather(town: str) -> str:
    """The weather of a town."""
    return call(town)


async def streamed(agent: Agent) -> str:
    async with agent.run_stream(QUESTION) as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1, pieces
    return "".join(pieces)


def chat(name: str) -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))


def responses(name: str) -> OpenAIResponsesModel:
    return OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))


def messages(name: str) -> AnthropicModel:
    # It asks for 16384 tokens by default, which with a prompt are more than this model's context.
    return AnthropicModel(name, provider=AnthropicProvider(base_url=ROOT, api_key=KEY), settings={"max_tokens": 1000})


for make in (chat, responses, messages):
    model = make(MODEL)
    run = Agent(model).run_sync(QUESTION)
    check(run.output, TALK)
    check(run.usage.output_tokens, TALK_TOKENS)
    check(asyncio.run(streamed(Agent(model))), TALK)
    check(Agent(model, tools=[get_weather]).run_sync(QUESTION).output, RESULT)
    call.check_once()
    check(Agent(model, tools=[get_weather], output_type=ToolOutput(Weather)).run_sync(QUESTION).output, OSLO)
    call.check_once()
    check(Agent(model, output_type=Weather).run_sync(QUESTION).output, OSLO)
    if make is not messages:
        check(Agent(model, output_type=NativeOutput(Weather)).run_sync(QUESTION).output, OSLO)
        both = Agent(model, tools=[get_weather], output_type=NativeOutput(Weather))
        check(both.run_sync(QUESTION).output, OSLO)
        call.check_once()
    with refused(ModelHTTPError, "nobody"):
        Agent(make("nobody")).run_sync(QUESTION)
    with refused(ModelHTTPError, "temperature"):
        Agent(model).run_sync(QUESTION, model_settings={"temperature": BAD_TEMPERATURE})
print(f"pydantic-ai {version('pydantic-ai-slim')}: ok")
