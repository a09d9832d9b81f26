"""Makes a folder with a small GPT-2 that answers by a script: `scripted_model.py DEMO_MODEL FOLDER`.

It calls tools when it is offered some, says a sentence when it has a tool's result, and writes JSON where a grammar
leaves it nothing else. It is the demo model's tokenizer with a token for each piece of the script, and weights that
are computed, not trained: a piece's embedding is a row of a Hadamard matrix, and the head gives every piece its
successors in the order in which they are wanted. The first that the grammar allows follows. The chat template reads
the conversation and ends the prompt with the piece from which the answer begins. So any client gets the same answer at
any temperature, with no field of ours in its request. Needs only the standard library."""

import json
import struct
import sys
from pathlib import Path

DEMO, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
WIDTH = 128
POSITIONS = 16384
END = "<|endoftext|>"

TEMPLATE = """{%- if tools %}<|system|>You may call these functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write <tool_call>
{"name": .., "arguments": ..}
</tool_call> to call one.
{% endif %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{%- set last = messages[-1] %}
{%- set called = messages | map(attribute="tool_calls") | select | list %}
{%- if last.role == "tool" %}{{ "<|result|>" if called and "7" in last.content else "<|lost|>" }}
{%- elif tools %}<|call|>
{%- else %}<|talk|>
{%- endif %}
{%- endif %}"""

# How a grammar has JSON written.
CALLS = {name: f'[{{"name": "{name}", "parameters": ' for name in ("get_weather", "final_result", "Weather")}
TOWN = '{"town": "Oslo"'
# Each piece of the script and what follows it, most wanted first.
SCRIPT = {
    "<|talk|>": ["The", TOWN],
    "The": [" sky"], " sky": [" over Oslo"], " over Oslo": [" is clear."], " is clear.": [END],
    "<|call|>": ["<tool_call>\n", CALLS["get_weather"], CALLS["final_result"], CALLS["Weather"], TOWN],
    "<tool_call>\n": ['{"name": "get_weather", '], '{"name": "get_weather", ': ['"arguments": '],
    '"arguments": ': ['{"town": '], '{"town": ': ['"Oslo"'], '"Oslo"': ["}}\n</tool_call>"], "}}\n</tool_call>": [END],
    "<|result|>": ["It has", CALLS["final_result"], CALLS["Weather"], CALLS["get_weather"], TOWN],
    "It has": [" 7 degrees"], " 7 degrees": [" in Oslo."], " in Oslo.": [END],
    "<|lost|>": ["I see no result of the tool."], "I see no result of the tool.": [END],
    TOWN: [', "celsius": 7', "}"], ', "celsius": 7': ["}"], "}": [END, "}]"], "}]": [END],
    **{call: [TOWN] for call in CALLS.values()},
}


def hadamard(row: int) -> list[float]:
    return [-1.0 if (row & column).bit_count() % 2 else 1.0 for column in range(WIDTH)]


def with_pieces(tokenizer: dict) -> dict[str, int]:
    """Adds the pieces that the tokenizer has no token for; the ids of all."""
    ids = dict(tokenizer["model"]["vocab"])
    ids |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    for piece in SCRIPT:
        ids.setdefault(piece, len(ids))
    for piece in SCRIPT:
        at = ids[piece]
        form = dict(id=at, content=piece, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
        if at >= len(tokenizer["model"]["vocab"]):
            tokenizer["added_tokens"].append(form)
    return ids


def weights(ids: dict[str, int]) -> dict[str, tuple[list[int], bytes]]:
    count = len(ids)
    rows = {ids[piece]: hadamard(number + 1) for number, piece in enumerate(SCRIPT)}
    head: dict[int, list[float]] = {}
    for piece, successors in SCRIPT.items():
        for rank, successor in enumerate(successors):
            row = head.setdefault(ids[successor], [0.0] * WIDTH)
            # A first choice is 16 above the second: certain at any usual temperature.
            for column, value in enumerate(rows[ids[piece]]):
                row[column] += value * (1 - rank / 8)
    zeros = bytes(4 * WIDTH)

    def table(known: dict[int, list[float]]) -> tuple[list[int], bytes]:
        packed = (struct.pack(f"<{WIDTH}f", *known[at]) if at in known else zeros for at in range(count))
        return [count, WIDTH], b"".join(packed)

    def constant(value: float, *shape: int) -> tuple[list[int], bytes]:
        size = 1
        for side in shape:
            size *= side
        return list(shape), struct.pack("<f", value) * size

    layer = "transformer.h.0."
    tensors = {
        "transformer.wte.weight": table(rows),
        "transformer.wpe.weight": constant(0, POSITIONS, WIDTH),
        "lm_head.weight": table(head),
    }
    for norm in (layer + "ln_1", layer + "ln_2", "transformer.ln_f"):
        tensors |= {norm + ".weight": constant(1, WIDTH), norm + ".bias": constant(0, WIDTH)}
    # The one layer adds nothing.
    sides = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH), "mlp.c_fc": (WIDTH, 4 * WIDTH),
             "mlp.c_proj": (4 * WIDTH, WIDTH)}
    for name, (rows_in, columns) in sides.items():
        tensors |= {layer + name + ".weight": constant(0, rows_in, columns), layer + name + ".bias": constant(0, columns)}
    return tensors


def write_safetensors(path: Path, tensors: dict[str, tuple[list[int], bytes]]) -> None:
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)


FOLDER.mkdir(parents=True, exist_ok=True)
tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
ids = with_pieces(tokenizer)
(FOLDER / "tokenizer.json").write_text(json.dumps(tokenizer))
settings = json.loads((DEMO / "tokenizer_config.json").read_text()) | {"model_max_length": POSITIONS}
(FOLDER / "tokenizer_config.json").write_text(json.dumps(settings))
(FOLDER / "chat_template.jinja").write_text(TEMPLATE)
config = json.loads((DEMO / "config.json").read_text())
config |= dict(dtype="float32", n_embd=WIDTH, n_head=2, n_layer=1, n_positions=POSITIONS, vocab_size=len(ids),
               tie_word_embeddings=False, bos_token_id=ids[END], eos_token_id=ids[END])
(FOLDER / "config.json").write_text(json.dumps(config))
write_safetensors(FOLDER / "model.safetensors", weights(ids))
