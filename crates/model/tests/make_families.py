#!/usr/bin/env python3
"""Writes the golden data of the family tests: for each tiny random model what transformers answers, in fp32.

    make_families.py OUT_DIR [NAME...]       OUT_DIR is crates/model/tests/families

Made with transformers 5.23.0 and torch 2.11.0. No weight is stored: both sides compute them from the tensor's name.
OUT_DIR/<name>.json holds

    {"config": what config.json says, "served": the longest sequence served,
     "tensors": {name: {"shape": [..], "base": number, "spread": number}, ...},
     "cases": [{"prompt": [ids], "greedy": [64 ids], "logits_last": [vocabulary floats] or null}, ...], ...}

A weight's i-th number is base + spread * u, where u in [-1, 1) is made of the upper 24 bits of SplitMix64 at step i of the
seed FNV-1a(name). `greedy` is the plain argmax after prompt and output so far; every step is a full forward pass without a
cache and with eager attention: the simplest reading of the model. A case with a step close to a tie is drawn again.
Rotations that depend on the length (dynamic, longrope) are fixed for the served length, as Pinion and vLLM fix them.
"""

import json
import math
import pathlib
import sys

import numpy
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES_WITH_LOGITS = 3
GREEDY_TOKENS = 64
MARGIN_MIN = 1e-3  # (best - second) / |best|: far above what fp32 rounding can move
PROMPT_LENGTHS = [33, 100, 1, 7, 2, 5, 11, 16, 17, 31, 32, 48, 64, 65, 77, 90]

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def shape(model_type: str, **keys) -> dict:
    common = {"model_type": model_type, "vocab_size": 101, "hidden_size": 48, "intermediate_size": 80,
              "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
              "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
              "pad_token_id": 0, "tie_word_embeddings": False}
    return {key: value for key, value in (common | keys).items() if value != "absent"}


def longrope(served: int) -> dict:
    lists = {"short_factor": [1.0 + 0.1 * i for i in range(6)], "long_factor": [1.5 + i for i in range(6)]}
    return shape("phi3", hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                 partial_rotary_factor=0.75, original_max_position_embeddings=served,
                 rope_scaling={"type": "longrope"} | lists)


# Name -> (config.json, served length). KV heads: one, some, all; heads wider and narrower than hidden / heads.
MODELS = {
    "llama-all-heads": (shape("llama", num_attention_heads=4, num_key_value_heads="absent"), 256),
    "llama-llama3": (shape("llama", head_dim=16, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                           rope_theta=5e5, rope_scaling=LLAMA3), 256),
    "llama-linear": (shape("llama", hidden_size=40, num_attention_heads=5, num_key_value_heads=1,
                           rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 2e4}), 256),
    "llama-dynamic": (shape("llama", max_position_embeddings=96,
                            rope_scaling={"type": "dynamic", "factor": 2.0}), 192),
    "llama-yarn": (shape("llama", rope_scaling=YARN), 256),
    "mistral": (shape("mistral", num_attention_heads=8, head_dim=20, sliding_window=None), 256),
    "mistral-window": (shape("mistral", num_attention_heads=4, num_key_value_heads=1, sliding_window=9), 256),
    "qwen2": (shape("qwen2", tie_word_embeddings=True, rope_theta=1e6, sliding_window=32768,
                    max_window_layers=2, use_sliding_window=False), 256),
    "qwen2-window": (shape("qwen2", use_sliding_window=True, sliding_window=13, max_window_layers=1,
                           rope_scaling=YARN), 256),
    "qwen3": (shape("qwen3", num_attention_heads=4, head_dim=24, tie_word_embeddings=True, rope_theta=1e6), 256),
    "qwen3-one-head": (shape("qwen3", num_attention_heads=3, num_key_value_heads=1, head_dim=40,
                             attention_bias=True, rope_scaling=YARN | {"attention_factor": 1.2}), 256),
    "smollm3": (shape("smollm3", num_hidden_layers=4, no_rope_layer_interval=2, tie_word_embeddings=True,
                      rope_theta=5e6), 256),
    "smollm3-window": (shape("smollm3", no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=10,
                             attention_bias=True), 256),
    "phi3-window": (shape("phi3", num_attention_heads=4, num_key_value_heads=4, sliding_window=15), 256),
    "phi3-long": (longrope(32), 256),
    "phi3-short": (longrope(200), 200),
    "granite": (shape("granite", embedding_multiplier=12.0, attention_multiplier=0.2, residual_multiplier=0.22,
                      logits_scaling=4.0, tie_word_embeddings=True, mlp_bias=True), 256),
    "olmo2": (shape("olmo2"), 256),
    "gemma2": (shape("gemma2", num_attention_heads=4, head_dim=16, sliding_window=11, query_pre_attn_scalar=24,
                     attn_logit_softcapping=2.0, final_logit_softcapping=5.0, num_hidden_layers=4,
                     hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True), 256),
    "gemma3": (shape("gemma3_text", num_attention_heads=4, num_key_value_heads=1, head_dim=20,
                     sliding_window=11, query_pre_attn_scalar=20, num_hidden_layers=4, tie_word_embeddings=True,
                     sliding_window_pattern=2, rope_theta=1e6, rope_local_base_freq=1e4,
                     rope_scaling={"rope_type": "linear", "factor": 8.0}), 256),
}


def stream(name: str, count: int) -> numpy.ndarray:
    """u of the file's head."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with numpy.errstate(over="ignore"):
        x = numpy.uint64(seed) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        x = x ^ (x >> numpy.uint64(31))
    return ((x >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(2**23)) - numpy.float32(1)


def rule(name: str, tensor: torch.Tensor, keys: dict) -> tuple[float, float]:
    """Base and spread, powers of two, so that both sides compute the same bits."""
    is_gemma = keys["model_type"].startswith("gemma")
    factor = math.sqrt(keys["hidden_size"]) if is_gemma else keys.get("embedding_multiplier", 1.0)
    if name.endswith(".bias"):
        return 0.0, 0.25
    if "norm" in name:
        return (0.0 if is_gemma else 1.0), 0.5
    if "embed_tokens" in name:
        # Without it the residual stream is the embedding and little else, and every answer its own last token.
        return 0.0, 2.0 ** -round(math.log2(factor))
    return 0.0, 2.0 ** round(math.log2(2.0 * math.sqrt(3.0 / tensor.shape[1])))


def build(name: str, keys: dict, served: int):
    config = AutoConfig.for_model(**json.loads(json.dumps(keys)))
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    tensors, parameters = {}, dict(model.named_parameters())
    for tensor_name, tensor in parameters.items():
        base, spread = rule(tensor_name, tensor, keys)
        values = numpy.float32(base) + numpy.float32(spread) * stream(tensor_name, tensor.numel())
        tensor.data.copy_(torch.from_numpy(values).view(tensor.shape))
        tensors[tensor_name] = {"shape": list(tensor.shape), "base": base, "spread": spread}
    rotary = model.model.rotary_emb
    if rotary.rope_type in ("dynamic", "longrope"):
        frequencies, scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](model.config, None, seq_len=served)
        rotary.inv_freq.copy_(frequencies)
        rotary.attention_scaling = scaling
        rotary.rope_type = "default"
    return model, tensors


@torch.no_grad()
def answer(model, prompt: list[int]) -> tuple[list[int], list[float], float]:
    ids, first, margin = list(prompt), None, math.inf
    for _ in range(GREEDY_TOKENS):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        first = logits if first is None else first
        best = torch.topk(logits, 2)
        margin = min(margin, float((best.values[0] - best.values[1]) / logits.abs().max()))
        if margin < MARGIN_MIN:
            break
        ids.append(int(best.indices[0]))
    return ids[len(prompt):], [float(f"{value:.8g}") for value in first.tolist()], margin


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name, (keys, served) in MODELS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        model, tensors = build(name, keys, served)
        random, cases, smallest = numpy.random.default_rng(7), [], math.inf
        for index, length in enumerate(PROMPT_LENGTHS):
            for _ in range(400):
                prompt = [int(i) for i in random.integers(0, keys["vocab_size"], length)]
                greedy, logits, margin = answer(model, prompt)
                if margin >= MARGIN_MIN:
                    break
            else:
                raise SystemExit(f"{name}: no prompt of {length} tokens without a tie")
            smallest = min(smallest, margin)
            cases.append({"prompt": prompt, "greedy": greedy,
                          "logits_last": logits if index < CASES_WITH_LOGITS else None})
        golden = {"config": keys, "served": served, "tensors": tensors, "cases": cases, "margin_min": smallest,
                  "transformers": transformers.__version__, "torch": torch.__version__}
        (out / f"{name}.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(name, "margin", smallest, flush=True)


if __name__ == "__main__":
    main()
