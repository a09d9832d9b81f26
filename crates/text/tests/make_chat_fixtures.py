#!/usr/bin/env python3
"""Writes what jinja2 renders for chat templates, for crates/text/tests/chat_templates.rs to compare with.

    make_chat_fixtures.py OUT [NAME=FOLDER ...]

Reads every *.jinja in the folder OUT, after copying there those of each FOLDER with NAME before theirs, and the
conversations that lie beside this script; writes OUT/expected.json. The environment is the one that transformers gives chat templates
(transformers/utils/chat_template_utils.py). Needs jinja2 3.1.6 or later and nothing else.
"""

import datetime
import json
import pathlib
import shutil
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

# 2024-08-01, noon in UTC; the test renders at this time too.
UNIX_SECONDS = 1_722_513_600
TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "unk_token": "<|unk|>", "pad_token": "<|pad|>"}


class Generation(jinja2.ext.Extension):
    """{% generation %} marks text for training and does not change it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_unchanged"), [], [], body).set_lineno(line)

    def _unchanged(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(UNIX_SECONDS, datetime.timezone.utc).strftime(form)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def wants_parts(template):
    """Whether the template shows nothing of content that is a string; then it gets a list of one text part."""
    try:
        text = template.render(messages=[{"role": "user", "content": "probe-content"}], tools=None, **TOKENS)
        return "probe-content" not in text
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, IndexError):
        return True


def in_parts(conversation):
    messages = []
    for message in conversation["messages"]:
        content = message["content"]
        messages.append(message | {"content": [{"type": "text", "text": content}]})
    return conversation | {"messages": messages}


def render(template, conversation, generation_prompt):
    """The text, or the words of raise_exception, or the class of another error."""
    try:
        text = template.render(
            messages=conversation["messages"],
            tools=conversation.get("tools"),
            documents=conversation.get("documents"),
            add_generation_prompt=generation_prompt,
            **TOKENS,
            **conversation.get("chat_template_kwargs", {}),
        )
        return {"text": text}
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raises": str(error)}
        return {"fails": type(error).__name__}
    except (TypeError, ValueError, KeyError, IndexError) as error:
        return {"fails": "iterates None" if "'NoneType' object is not iterable" in str(error) else type(error).__name__}


def main():
    out, sources = pathlib.Path(sys.argv[1]), sys.argv[2:]
    for source in sources:
        name, folder = source.split("=", 1)
        for path in sorted(pathlib.Path(folder).glob("*.jinja")):
            shutil.copyfile(path, out / f"{name}-{path.name}")
    here = pathlib.Path(__file__).parent / "chat_templates" / "conversations.json"
    conversations = json.loads(here.read_text(encoding="utf-8"))
    cases = []
    for path in sorted(out.glob("*.jinja")):
        template = environment().from_string(path.read_text(encoding="utf-8"))
        parts = wants_parts(template)
        for name, conversation in conversations.items():
            if parts:
                conversation = in_parts(conversation)
            for generation_prompt in (False, True):
                case = {"template": path.name, "conversation": name, "add_generation_prompt": generation_prompt}
                cases.append(case | render(template, conversation, generation_prompt))
    text = json.dumps({"unix_seconds": UNIX_SECONDS, "tokens": TOKENS, "cases": cases}, ensure_ascii=False, indent=1)
    (out / "expected.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
