"""LlamaIndex's OpenAILike against BASE_URL. Prints one line, or raises."""

import asyncio
from importlib.metadata import version

import openai
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from kit import BASE_URL, KEY, MODEL, OSLO, QUESTION, RESULT, TALK, TALK_TOKENS, Tool, Weather, check, refused

call = Tool()


def get_weather(town: str) -> str:
    """The weather of a town."""
    return call(town)


def make(**more) -> OpenAILike:
    known = dict(api_base=BASE_URL, api_key=KEY, model=MODEL, is_chat_model=True, is_function_calling_model=True)
    return OpenAILike(**known | dict(context_window=16384) | more)


llm = make()
messages = [ChatMessage(role="user", content=QUESTION)]
answer = llm.chat(messages)
check(answer.message.content, TALK)
check(answer.raw.usage.completion_tokens, TALK_TOKENS)
pieces = [piece.delta for piece in llm.stream_chat(messages) if piece.delta]
check("".join(pieces), TALK)
assert len(pieces) > 1, pieces


async def run_agent() -> str:
    return str(await FunctionAgent(tools=[get_weather], llm=llm).run(QUESTION))


check(asyncio.run(run_agent()), RESULT)
call.check_once()
tool = FunctionTool.from_defaults(get_weather)
for choice in ("required", "get_weather"):
    said = llm.chat_with_tools([tool], QUESTION, tool_choice=choice)
    [wanted] = llm.get_tool_calls_from_response(said)
    check((wanted.tool_name, wanted.tool_kwargs), ("get_weather", {"town": "Oslo"}))

prompt = PromptTemplate("How is the weather in {town}?")
check(llm.structured_predict(Weather, prompt, town="Oslo"), OSLO)
check(make(should_use_structured_outputs=True).structured_predict(Weather, prompt, town="Oslo"), OSLO)
check(llm.as_structured_llm(Weather).complete(QUESTION).raw, OSLO)
# The library's last partial object lacks what came last.
check(list(llm.stream_structured_predict(Weather, prompt, town="Oslo"))[-1].town, "Oslo")

with refused(openai.NotFoundError, "nobody"):
    make(model="nobody").chat(messages)
with refused(openai.BadRequestError, "top_p"):
    make(additional_kwargs={"top_p": 7}).chat(messages)
print(f"llama-index-llms-openai-like {version('llama-index-llms-openai-like')}: ok")
