#!/usr/bin/env python3
"""Writes the golden data of the parity tests: three tiny random GPT-2 models and what transformers answers.

    make_fixtures.py OUT_DIR            OUT_DIR is crates/model/tests/fixtures
    make_fixtures.py OUT_DIR --scores   only prompt_scores.json, for the models that are there

Each OUT_DIR/<name>/ holds config.json, model.safetensors, golden.json and prompt_scores.json:

    {"cases": [{"prompt": [ids], "greedy": [64 ids], "logits_last": [vocabulary floats] or null}, ...],
     "margin_min": smallest relative distance of the two best logits over all greedy steps,
     "transformers": version, "torch": version, "seed": n}

    {"cases": [{"prompt": [ids], "logprobs": [one float for each id but the first], "ranks": [the same],
                "best": [the three likeliest ids at the same places]}, ...], "transformers": version, "torch": version}

`greedy` is the plain argmax after prompt and output so far, with the end-of-text id treated as any other.
`logits_last` stands at the last prompt position, in fp32, and is given for the first few cases only.
Each greedy step is a full forward pass without a cache, eager attention, fp32: the simplest reading of the model.
A case in which some step comes close to a tie is thrown away and its prompt is drawn again.
"""

import json
import pathlib
import sys

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

SEED = 1000
CASES_WITH_LOGITS = 4
GREEDY_TOKENS = 64
MARGIN_MIN = 1e-3  # (best - second) / |best|: far above what fp32 rounding can move
PROMPT_LENGTHS = [1, 7, 33, 100, 2, 3, 5, 11, 16, 17, 31, 32, 48, 64, 65, 90]

# Odd vocabularies, a head size that is no power of two, and an MLP that is not four times as wide.
# The layer-norm epsilon and the position count are GPT-2's own and deliberately small, respectively.
SHAPES = {
    "tiny-a": dict(vocab_size=257, n_embd=64, n_head=4, n_layer=2, n_positions=256),
    "tiny-b": dict(vocab_size=509, n_embd=96, n_head=3, n_layer=3, n_positions=256, n_inner=96),
    "tiny-c": dict(vocab_size=131, n_embd=40, n_head=2, n_layer=1, n_positions=256, n_inner=112),
}


def build(shape: dict) -> GPT2LMHeadModel:
    """A random model whose norms and biases are not the neutral ones, so that leaving one out shows."""
    torch.manual_seed(SEED)
    end = shape["vocab_size"] - 1
    config = GPT2Config(**shape, initializer_range=0.25, bos_token_id=end, eos_token_id=end)
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                neutral = 1.0 if name.endswith("weight") else 0.0
                parameter.copy_(neutral + 0.1 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def greedy(model: GPT2LMHeadModel, prompt: list[int]) -> tuple[list[int], torch.Tensor, float] | None:
    """64 greedy ids, the logits at the last prompt position, and the smallest relative margin on the way;
    None as soon as a step is nearly a tie."""
    ids, first, margin_min = list(prompt), None, float("inf")
    for _ in range(GREEDY_TOKENS):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        first = logits if first is None else first
        best, second = logits.topk(2).values.tolist()
        margin_min = min(margin_min, (best - second) / abs(best))
        if margin_min < MARGIN_MIN:
            return None
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :], first, margin_min


def golden(model: GPT2LMHeadModel) -> dict:
    """All cases of one model."""
    generator = torch.Generator().manual_seed(SEED)
    cases, margin_min = [], float("inf")
    for index, length in enumerate(PROMPT_LENGTHS):
        answer = None
        while answer is None:
            prompt = torch.randint(0, model.config.vocab_size, (length,), generator=generator).tolist()
            answer = greedy(model, prompt)
        output, logits, margin = answer
        margin_min = min(margin_min, margin)
        kept = logits.tolist() if index < CASES_WITH_LOGITS else None
        cases.append({"prompt": prompt, "greedy": output, "logits_last": kept})
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    return {"cases": cases, "margin_min": margin_min, **versions, "seed": SEED}


@torch.no_grad()
def prompt_scores(model: GPT2LMHeadModel, prompts: list[list[int]]) -> dict:
    """What the model thought of each token of the prompts after those before it: log-softmax in fp32."""
    cases = []
    for prompt in prompts:
        logprobs = torch.log_softmax(model(torch.tensor([prompt]), use_cache=False).logits[0, :-1].float(), -1)
        own = logprobs.gather(1, torch.tensor(prompt[1:]).unsqueeze(1))
        cases.append({
            "prompt": prompt,
            "logprobs": own[:, 0].tolist(),
            "ranks": (1 + (logprobs > own).sum(1)).tolist(),
            "best": logprobs.topk(3).indices.tolist(),
        })
    return {"cases": cases, "transformers": transformers.__version__, "torch": torch.__version__}


def write_scores(folder: pathlib.Path) -> None:
    model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    answers = prompt_scores(model, [case["prompt"] for case in cases if len(case["prompt"]) > 1])
    (folder / "prompt_scores.json").write_text(encode(answers) + "\n")


def encode(value) -> str:
    """JSON with nine significant digits per float, which is enough to give back every fp32 exactly."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{encode(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(encode(v) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:.9g}"
    return json.dumps(value)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--scores"]):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    if sys.argv[2:]:
        for name in SHAPES:
            write_scores(pathlib.Path(sys.argv[1]) / name)
        return
    for name, shape in SHAPES.items():
        model = build(shape)
        answers = golden(model)
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "golden.json").write_text(encode(answers) + "\n")
        write_scores(folder)
        distinct = sum(len(set(case["greedy"])) for case in answers["cases"]) 
        distinct /= len(answers["cases"])
        print(f"{name}: margin {answers['margin_min']:.2e}, {distinct:.0f} distinct ids of 64")


if __name__ == "__main__":
    main()
