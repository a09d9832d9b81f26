#!/usr/bin/env python3
"""Writes the goldens of checkpoints that are quantised already: for each form of storage a tiny random Llama, and the logits
that the numbers stand for, computed in float64.

    make_prequantized.py OUT_DIR       OUT_DIR is crates/model/tests/prequantized_goldens; needs numpy 2.4.6

The unpacking is written here a second time, from the formats' definitions: AutoAWQ's GEMM packing, GPTQ's, that of
compressed-tensors 0.20.0 (compressors/pack_quantized/helpers.py), and DeepSeek's FP8 blocks. No weight is stored: both sides
compute the packed bits from the tensor's name. OUT_DIR/<name>.json holds

    {"config": what config.json says, "keeps": the form whose integers are kept as they are, or null,
     "tensors": {name: {"dtype": .., "shape": [..], and one of
                        "base", "spread": numbers base + spread * u, rounded to the dtype,
                        "bits": random bits,    "list": the numbers themselves}},
     "cases": [{"prompt": [ids], "logits": [vocabulary floats]}]}

u is made of the upper 24 bits of SplitMix64 at step i of the seed FNV-1a(name), a random word is its upper 32 bits, a random
byte its upper 8; a byte of F8_E4M3 that would be no number is 0.
"""

import json
import pathlib
import sys

import numpy

VOCAB, HEADS, KV_HEADS, LAYERS, THETA = 64, 2, 1, 2, 10000.0
PROMPTS = [[5, 60, 1, 33], [7], [12, 40, 41, 2, 2, 63, 19, 8, 30, 11, 54, 3]]


def mixed(name: str, count: int) -> numpy.ndarray:
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with numpy.errstate(over="ignore"):
        x = numpy.uint64(seed) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return x ^ (x >> numpy.uint64(31))


def bf16(values: numpy.ndarray) -> numpy.ndarray:
    """Rounded to nearest even."""
    bits = values.astype(numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(numpy.uint32).view(numpy.float32)


class Tensors:
    """The tensors of one checkpoint, as rules; each maker gives the numbers back."""

    def __init__(self):
        self.rules = {}

    def floats(self, name, dtype, shape, base, spread):
        self.rules[name] = {"dtype": dtype, "shape": list(shape), "base": base, "spread": spread}
        u = (mixed(name, int(numpy.prod(shape))) >> numpy.uint64(40)).astype(numpy.float32)
        u = u / numpy.float32(2**23) - numpy.float32(1)
        values = numpy.float32(base) + numpy.float32(spread) * u
        kinds = {"F32": lambda v: v, "F16": lambda v: v.astype(numpy.float16), "BF16": bf16}
        return kinds[dtype](values).astype(numpy.float64).reshape(shape)

    def words(self, name, shape):
        self.rules[name] = {"dtype": "I32", "shape": list(shape), "bits": True}
        return (mixed(name, int(numpy.prod(shape))) >> numpy.uint64(32)).astype(numpy.int64).reshape(shape)

    def bytes(self, name, dtype, shape):
        self.rules[name] = {"dtype": dtype, "shape": list(shape), "bits": True}
        found = (mixed(name, int(numpy.prod(shape))) >> numpy.uint64(56)).astype(numpy.int64).reshape(shape)
        return numpy.where((found & 0x7F) == 0x7F, 0, found) if dtype == "F8_E4M3" else found

    def list(self, name, dtype, values):
        values = numpy.array(values)
        self.rules[name] = {"dtype": dtype, "shape": list(values.shape), "list": [int(v) for v in values.ravel()]}
        return values


def by_group(q, scales, zeros, group_of):
    """(q - zero) * scale, all [outputs, inputs] or [outputs, groups]."""
    return (q - zeros[:, group_of]) * scales[:, group_of]


def nibbles(words, bits, axis):
    """Low bits first, along an axis."""
    parts = [(words >> (bits * i)) & ((1 << bits) - 1) for i in range(32 // bits)]
    stacked = numpy.stack(parts, axis=axis + 1)
    shape = list(words.shape)
    shape[axis] *= 32 // bits
    return stacked.reshape(shape)


def awq(group):
    def make(tensors, base, out, inputs):
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def ordered(words):
            found = numpy.zeros((words.shape[0], words.shape[1] * 8), numpy.int64)
            for place, offset in enumerate(order):
                found[:, offset::8] = words >> (4 * place) & 15
            return found

        groups = inputs // group
        q = ordered(tensors.words(base + "qweight", (inputs, out // 8)))
        zeros = ordered(tensors.words(base + "qzeros", (groups, out // 8)))
        scales = tensors.floats(base + "scales", "F16", (groups, out), 0.03, 0.015)
        return by_group(q.T, scales.T, zeros.T, numpy.arange(inputs) // group)

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True,
              "modules_to_not_convert": ["lm_head"]}
    return make, config, None


def gptq(bits, group, symmetric=False, act_order=False, version=1):
    def make(tensors, base, out, inputs):
        per, size = 32 // bits, inputs if group == -1 else group
        groups = inputs // size
        q = nibbles(tensors.words(base + "qweight", (inputs // per, out)), bits, 0)
        if symmetric:
            stored = (1 << bits - 1) - (2 - version)
            word = sum(stored << bits * i for i in range(per))
            zeros = nibbles(tensors.list(base + "qzeros", "I32", numpy.full((groups, out // per), word)), bits, 1)
        else:
            zeros = nibbles(tensors.words(base + "qzeros", (groups, out // per)), bits, 1)
        zeros = zeros + (2 - version)
        scales = tensors.floats(base + "scales", "F16", (groups, out), 0.03 * 16 / 2**bits, 0.015 * 16 / 2**bits)
        order = numpy.arange(inputs) // size
        if act_order:
            order = order[numpy.argsort(mixed(base, inputs), kind="stable")]
        tensors.list(base + "g_idx", "I32", order)
        if base.endswith("q_proj."):
            tensors.list(base + "bias", "F16", numpy.zeros(out, int))
        return by_group(q.T, scales.T, zeros.T, order)

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order,
              "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    keeps = None
    if symmetric and not act_order:
        keeps = "int8" if bits == 8 else "int4"
    return make, config, keeps


def compressed(format, weights):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
            "ignore": ["lm_head"], "kv_cache_scheme": None}


def packed(group, symmetric=True, bits=4):
    def make(tensors, base, out, inputs):
        per = 32 // bits
        groups = inputs // group
        q = nibbles(tensors.words(base + "weight_packed", (out, inputs // per)), bits, 1)
        tensors.list(base + "weight_shape", "I64", [out, inputs])
        scales = tensors.floats(base + "weight_scale", "BF16", (out, groups), 0.03, 0.015)
        middle = 1 << bits - 1
        zeros = numpy.full((out, groups), middle)
        if not symmetric:
            zeros = nibbles(tensors.words(base + "weight_zero_point", (-(-out // per), groups)), bits, 0)[:out]
        return by_group(q, scales, zeros, numpy.arange(inputs) // group)

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group,
               "actorder": None, "dynamic": False, "block_structure": None}
    return make, compressed("pack-quantized", weights), "int4" if symmetric else None


def integers(strategy, symmetric=True):
    def make(tensors, base, out, inputs):
        q = tensors.bytes(base + "weight", "I8", (out, inputs))
        q = numpy.where(q > 127, q - 256, q)
        shape = (out, 1) if strategy == "channel" else (1,)
        scales = tensors.floats(base + "weight_scale", "F32", shape, 0.002, 0.001)
        zeros = numpy.zeros((out, 1), int)
        if not symmetric:
            zeros = tensors.bytes(base + "weight_zero_point", "I8", (out, 1))
            zeros = numpy.where(zeros > 127, zeros - 256, zeros)
        scales = numpy.broadcast_to(scales.reshape(-1, 1), (out, 1))
        return by_group(q, scales, zeros, numpy.zeros(inputs, int))

    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": None,
               "dynamic": False}
    return make, compressed("int-quantized", weights), "int8" if symmetric else None


def e4m3(bits):
    exponent, mantissa = bits >> 3 & 15, bits & 7
    magnitude = numpy.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return numpy.where(bits & 0x80, -magnitude, magnitude)


def float8(strategy):
    def make(tensors, base, out, inputs):
        values = e4m3(tensors.bytes(base + "weight", "F8_E4M3", (out, inputs)))
        shape = {"tensor": (1,), "channel": (out, 1)}[strategy]
        return values * tensors.floats(base + "weight_scale", "BF16", shape, 0.002, 0.001).reshape(-1, 1)

    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": False}
    return make, compressed("float-quantized", weights), None


def float8_blocks(size):
    def make(tensors, base, out, inputs):
        values = e4m3(tensors.bytes(base + "weight", "F8_E4M3", (out, inputs)))
        shape = (-(-out // size), -(-inputs // size))
        scales = tensors.floats(base + "weight_scale_inv", "F32", shape, 0.002, 0.001)
        return values * scales.repeat(size, 0)[:out].repeat(size, 1)[:, :inputs]

    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [size, size]}
    return make, config, None


FORMS = {
    "awq-g32": (awq(32), 64, 96),
    "gptq-g32": (gptq(4, 32), 64, 96),
    "gptq-v2-g32": (gptq(4, 32, version=2), 64, 96),
    "gptq-symmetric-g64": (gptq(4, 64, symmetric=True), 64, 128),
    "gptq-act-order": (gptq(4, 32, symmetric=True, act_order=True), 64, 96),
    "gptq-8-bits": (gptq(8, -1, symmetric=True), 64, 96),
    "packed-g32": (packed(32), 64, 96),
    "packed-g64": (packed(64), 64, 128),
    "packed-g128": (packed(128), 128, 256),
    "packed-zero-points": (packed(32, symmetric=False), 64, 96),
    "integers-channel": (integers("channel"), 64, 96),
    "integers-tensor": (integers("tensor"), 64, 96),
    "integers-zero-points": (integers("channel", symmetric=False), 64, 96),
    "float8-tensor": (float8("tensor"), 64, 96),
    "float8-channel": (float8("channel"), 64, 96),
    # Blocks that do not divide the weights, as at the edges of published models.
    "float8-blocks": (float8_blocks(48), 64, 96),
}


def rms(x, weight):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def rotated(x, head_dim, theta, divisors):
    """[tokens, heads, head_dim], halves rotated."""
    half = head_dim // 2
    angles = numpy.arange(len(x))[:, None] * theta ** (-2.0 * numpy.arange(half) / head_dim) / divisors
    cos, sin = numpy.cos(angles)[:, None], numpy.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def logits(weights, prompt, head_dim, layers=LAYERS, theta=THETA, divisors=1.0):
    """Of a Llama, Qwen2 or Qwen3: what the weights have of biases and of norms on heads is applied."""
    x = weights["model.embed_tokens.weight"][prompt]
    for layer in range(layers):
        at = lambda name: weights[f"model.layers.{layer}.{name}"]
        has = lambda name: f"model.layers.{layer}.{name}" in weights
        y = rms(x, at("input_layernorm.weight"))

        def split(name):
            found = y @ at(f"self_attn.{name}_proj.weight").T
            if has(f"self_attn.{name}_proj.bias"):
                found = found + at(f"self_attn.{name}_proj.bias")
            found = found.reshape(len(prompt), -1, head_dim)
            return rms(found, at(f"self_attn.{name}_norm.weight")) if has(f"self_attn.{name}_norm.weight") else found

        q, k = (rotated(split(name), head_dim, theta, divisors) for name in "qk")
        v = split("v")
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat(group, 1), v.repeat(group, 1)
        scores = numpy.einsum("qhd,khd->hqk", q, k) / numpy.sqrt(head_dim)
        scores[:, numpy.triu_indices(len(prompt), 1)[0], numpy.triu_indices(len(prompt), 1)[1]] = -numpy.inf
        shares = numpy.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed_values = numpy.einsum("hqk,khd->qhd", shares, v).reshape(len(prompt), -1)
        x = x + mixed_values @ at("self_attn.o_proj.weight").T
        y = rms(x, at("post_attention_layernorm.weight"))
        gate = y @ at("mlp.gate_proj.weight").T
        up = y @ at("mlp.up_proj.weight").T
        x = x + (gate / (1 + numpy.exp(-gate)) * up) @ at("mlp.down_proj.weight").T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return rms(x[-1], weights["model.norm.weight"]) @ head.T


def main():
    out = pathlib.Path(sys.argv[1])
    for name, ((make, quantization, keeps), hidden, inner) in FORMS.items():
        tensors, weights = Tensors(), {}
        plain = lambda name, shape, base, spread: weights.update(
            {name: tensors.floats(name, "F16", shape, base, spread)})
        plain("model.embed_tokens.weight", (VOCAB, hidden), 0.0, 1.0)
        plain("model.norm.weight", (hidden,), 1.0, 0.5)
        plain("lm_head.weight", (VOCAB, hidden), 0.0, 0.25)
        kv = hidden // HEADS * KV_HEADS
        products = [("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", kv, hidden),
                    ("self_attn.v_proj", kv, hidden), ("self_attn.o_proj", hidden, hidden),
                    ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner)]
        for layer in range(LAYERS):
            for norm in ["input_layernorm", "post_attention_layernorm"]:
                plain(f"model.layers.{layer}.{norm}.weight", (hidden,), 1.0, 0.5)
            for product, outputs, inputs in products:
                base = f"model.layers.{layer}.{product}."
                weights[base + "weight"] = make(tensors, base, outputs, inputs)
        config = {"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "vocab_size": VOCAB,
                  "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
                  "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": THETA,
                  "tie_word_embeddings": False, "quantization_config": quantization}
        cases = [{"prompt": prompt, "logits": [float(f"{v:.8g}") for v in logits(weights, prompt, hidden // HEADS)]}
                 for prompt in PROMPTS]
        golden = {"config": config, "keeps": keeps, "tensors": tensors.rules, "cases": cases}
        (out / f"{name}.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
