"""openai-python by itself against BASE_URL: structured output and tools, by chats and by responses. Prints one line, or
raises."""

from importlib.metadata import version

import openai
from pydantic import BaseModel

from kit import BAD_TEMPERATURE, BASE_URL, KEY, MODEL, OSLO, QUESTION, RESULT, TALK, TALK_TOKENS, Tool, Weather, check, refused


class GetWeather(BaseModel):
    """The weather of a town."""

    town: str


client = openai.OpenAI(base_url=BASE_URL, api_key=KEY)
call = Tool()
asked = [{"role": "user", "content": QUESTION}]
tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]


def chats() -> None:
    chat = client.chat.completions
    whole = chat.create(model=MODEL, messages=asked)
    check((whole.choices[0].message.content, whole.usage.completion_tokens), (TALK, TALK_TOKENS))
    check(chat.parse(model=MODEL, messages=asked, response_format=Weather).choices[0].message.parsed, OSLO)
    with chat.stream(model=MODEL, messages=asked, response_format=Weather) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        message = stream.get_final_completion().choices[0].message
    check((message.parsed, message.content), (OSLO, "".join(pieces)))
    assert len(pieces) > 1, pieces
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("auto", "required", named):
        # The tool first, then the answer: in words, or in the format that stands beside the tools.
        for format, result in (({}, RESULT), ({"response_format": Weather}, OSLO)):
            message = chat.parse(model=MODEL, messages=asked, tools=tools, tool_choice=choice, **format).choices[0].message
            [made] = message.tool_calls
            check(made.function.parsed_arguments, GetWeather(town="Oslo"))
            said = {"role": "tool", "tool_call_id": made.id, "content": call(made.function.parsed_arguments.town)}
            last = chat.parse(model=MODEL, messages=[*asked, message, said], tools=tools, **format).choices[0].message
            check(last.parsed if format else last.content, result)
            call.check_once()
    with refused(openai.NotFoundError, "nobody"):
        chat.create(model="nobody", messages=asked)
    with refused(openai.BadRequestError, "temperature"):
        chat.parse(model=MODEL, messages=asked, response_format=Weather, temperature=BAD_TEMPERATURE)


def responses() -> None:
    whole = client.responses.create(model=MODEL, input=QUESTION)
    check((whole.output_text, whole.usage.output_tokens), (TALK, TALK_TOKENS))
    check(client.responses.parse(model=MODEL, input=QUESTION, text_format=Weather).output_parsed, OSLO)
    with client.responses.stream(model=MODEL, input=QUESTION, text_format=Weather) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    check((final.output_parsed, final.output_text), (OSLO, "".join(pieces)))
    for choice in ("auto", "required", {"type": "function", "name": "get_weather"}):
        for format, result in (({}, RESULT), ({"text_format": Weather}, OSLO)):
            first = client.responses.parse(model=MODEL, input=QUESTION, tools=tools, tool_choice=choice, **format)
            [made] = first.output
            check(made.parsed_arguments, GetWeather(town="Oslo"))
            said = {"type": "function_call_output", "call_id": made.call_id, "output": call(made.parsed_arguments.town)}
            # The service keeps what was said before.
            last = client.responses.parse(
                model=MODEL, previous_response_id=first.id, input=[said], tools=tools, **format
            )
            check(last.output_parsed if format else last.output_text, result)
            call.check_once()
    with refused(openai.NotFoundError, "nobody"):
        client.responses.create(model="nobody", input=QUESTION)
    with refused(openai.BadRequestError, "temperature"):
        client.responses.parse(model=MODEL, input=QUESTION, text_format=Weather, temperature=BAD_TEMPERATURE)


chats()
responses()
print(f"openai {version('openai')}: ok")
