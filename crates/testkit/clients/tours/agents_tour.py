"""openai-agents against BASE_URL: its default, which is responses, and chats. Prints one line, or raises."""

import asyncio
from importlib.metadata import version

import openai
from agents import (
    Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool,
    set_default_openai_client, set_tracing_disabled,
)

from kit import BAD_TEMPERATURE, BASE_URL, KEY, MODEL, OSLO, QUESTION, RESULT, TALK, TALK_TOKENS, Tool, Weather, check, refused

call = Tool()


@function_tool
def get_weather(town: str) -> str:
    """The weather of a town."""
    return call(town)


async def streamed(agent: Agent) -> str:
    run = Runner.run_streamed(agent, QUESTION)
    pieces = []
    async for event in run.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
    check(run.final_output, "".join(pieces))
    return pieces


client = openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY)
set_tracing_disabled(True)
set_default_openai_client(client, use_for_tracing=False)


async def tour() -> None:
    default = lambda name: name
    by_responses = lambda name: OpenAIResponsesModel(model=name, openai_client=client)
    by_chats = lambda name: OpenAIChatCompletionsModel(model=name, openai_client=client)
    for make in (default, by_responses, by_chats):
        model = make(MODEL)
        agent = lambda **more: Agent(name="Weather", instructions="Answer.", **dict(model=model) | more)
        run = await Runner.run(agent(), QUESTION)
        check(run.final_output, TALK)
        check(run.raw_responses[0].usage.output_tokens, TALK_TOKENS)
        pieces = await streamed(agent())
        check("".join(pieces), TALK)
        assert len(pieces) > 1, pieces
        check((await Runner.run(agent(tools=[get_weather]), QUESTION)).final_output, RESULT)
        call.check_once()
        check("".join(await streamed(agent(tools=[get_weather]))), RESULT)
        call.check_once()
        required = agent(tools=[get_weather], model_settings=ModelSettings(tool_choice="required"))
        check((await Runner.run(required, QUESTION)).final_output, RESULT)
        call.check_once()
        check((await Runner.run(agent(output_type=Weather), QUESTION)).final_output, OSLO)
        check((await Runner.run(agent(tools=[get_weather], output_type=Weather), QUESTION)).final_output, OSLO)
        call.check_once()
        both = ModelSettings(tool_choice="required")
        both_agent = agent(tools=[get_weather], output_type=Weather, model_settings=both)
        check((await Runner.run(both_agent, QUESTION)).final_output, OSLO)
        call.check_once()
        with refused(openai.NotFoundError, "nobody"):
            await Runner.run(agent(model=make("nobody")), QUESTION)
        with refused(openai.BadRequestError, "temperature"):
            await Runner.run(agent(model_settings=ModelSettings(temperature=BAD_TEMPERATURE)), QUESTION)
    first = await Runner.run(Agent(name="Weather", model=MODEL), QUESTION)
    second = await Runner.run(Agent(name="Weather", model=MODEL), "And now?", previous_response_id=first.last_response_id)
    assert second.raw_responses[0].usage.input_tokens > first.raw_responses[0].usage.input_tokens, "it goes on"


asyncio.run(tour())
print(f"openai-agents {version('openai-agents')}: ok")
