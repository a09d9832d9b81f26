#!/usr/bin/env python3
"""Writes the golden vectors of the pooling tests: what sentence-transformers' Pooling makes of transformers' outputs.

    make_pooled.py OUT_FILE       OUT_FILE is crates/model/tests/pooled.json

Made with sentence-transformers 6.2.0, transformers 5.23.0 and torch 2.11.0, in fp32. The models are those of
make_families.py, without their heads. OUT_FILE holds, for each model,

    {name: [{"prompt": [ids], "last": [numbers], "mean": [numbers]}, ...], ...}

the vectors neither cut nor normalised.
"""

import json
import pathlib
import sys

import numpy
import torch
from make_families import MODELS, build
from sentence_transformers.sentence_transformer.modules import Pooling

NAMES = ["qwen3", "llama-llama3", "mistral-window", "gemma3", "granite"]
PROMPT_LENGTHS = [1, 2, 33, 90]


@torch.no_grad()
def vector(model, prompt: list[int], mode: str, width: int) -> list[float]:
    outputs = model.model(torch.tensor([prompt]), use_cache=False).last_hidden_state
    features = {"token_embeddings": outputs, "attention_mask": torch.ones(1, len(prompt))}
    pooled = Pooling(width, pooling_mode=mode)(features)["sentence_embedding"][0]
    return [float(f"{value:.8g}") for value in pooled.tolist()]


def main() -> None:
    torch.set_num_threads(1)
    golden = {}
    for name in NAMES:
        keys, served = MODELS[name]
        model, _ = build(name, keys, served)
        random, cases = numpy.random.default_rng(11), []
        for length in PROMPT_LENGTHS:
            prompt = [int(i) for i in random.integers(0, keys["vocab_size"], length)]
            made = {kind: vector(model, prompt, mode, keys["hidden_size"])
                    for kind, mode in [("last", "lasttoken"), ("mean", "mean")]}
            cases.append({"prompt": prompt} | made)
        golden[name] = cases
    pathlib.Path(sys.argv[1]).write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
