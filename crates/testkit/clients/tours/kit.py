"""What the tours share: where the service is, what the scripted model says, and how errors are counted.

BASE_URL names a service of scripted_model.py's folder, such as http://127.0.0.1:8000/v1."""

import contextlib
import os
import re
import urllib.request

from pydantic import BaseModel

BASE_URL = os.environ["BASE_URL"]
ROOT = BASE_URL.removesuffix("/v1")
MODEL = "my-model"
KEY = "none"

# What the scripted model says: to a question, and when it has a tool's result.
TALK = "The sky over Oslo is clear."
TALK_TOKENS = 5
RESULT = "It has 7 degrees in Oslo."
QUESTION = "How is the weather in Oslo?"


class Weather(BaseModel):
    """The weather of a town."""

    town: str
    celsius: int


OSLO = Weather(town="Oslo", celsius=7)
# A field's value that is refused.
BAD_TEMPERATURE = -1.0


class Tool:
    """What a tool does, and with what it was called."""

    def __init__(self) -> None:
        self.towns: list[str] = []

    def __call__(self, town: str) -> str:
        self.towns.append(town)
        return "7 degrees"

    def check_once(self) -> None:
        assert self.towns == ["Oslo"], self.towns
        self.towns.clear()


def requests() -> int:
    """How many requests the service has answered or refused on its routes for models."""
    with urllib.request.urlopen(ROOT + "/metrics") as answer:
        text = answer.read().decode()
    counts = re.findall(r'^pinion_http_responses_total\{[^}]*route="/v1/[^}]*\} (\d+)$', text, re.MULTILINE)
    return sum(map(int, counts))


@contextlib.contextmanager
def refused(kind: type[Exception], said: str):
    """The block raises this error, which says this, after one request: a retry would only fail again."""
    before = requests()
    try:
        yield
    except kind as error:
        assert said in str(error), error
        asked = requests() - before
        assert asked == 1, f"{asked} requests for an error that is final"
        return
    raise AssertionError(f"{kind.__name__} expected")


def check(got, expected) -> None:
    assert got == expected, f"got {got!r}, expected {expected!r}"
