"""Writes a folder of Hugging Face's layout as GGUF, for llama.cpp: GPT-2, Llama (SmolLM2 too) and Qwen3.

Needs the packages `gguf` and `numpy`; benchmarks/peers/llama_server.sh sets them up. Safetensors are read here, in one
file or several, as fp32, fp16 or bf16. GPT-2's linear weights stand in the file as [in, out] and are turned; the rows of
Llama's Q and K go into the order of llama.cpp, which rotates neighbours and not halves.
"""
import argparse
import json
import math
import pathlib
import struct

import gguf
import numpy as np

# Of one block of GPT-2: GGUF's name, the file's name, and whether it is a linear weight that is turned.
GPT2_BLOCK = [
    ("attn_norm.weight", "ln_1.weight", False),
    ("attn_norm.bias", "ln_1.bias", False),
    ("attn_qkv.weight", "attn.c_attn.weight", True),
    ("attn_qkv.bias", "attn.c_attn.bias", False),
    ("attn_output.weight", "attn.c_proj.weight", True),
    ("attn_output.bias", "attn.c_proj.bias", False),
    ("ffn_norm.weight", "ln_2.weight", False),
    ("ffn_norm.bias", "ln_2.bias", False),
    ("ffn_up.weight", "mlp.c_fc.weight", True),
    ("ffn_up.bias", "mlp.c_fc.bias", False),
    ("ffn_down.weight", "mlp.c_proj.weight", True),
    ("ffn_down.bias", "mlp.c_proj.bias", False),
]

# Of one block of the others: GGUF's name and the file's.
DECODER_BLOCK = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
]

# What llama.cpp calls the expression that splits a text, where it is not GPT-2's.
SPLIT_NAMES = {"llama": "llama-bpe", "qwen3": "qwen2"}

# Of the matrices, and of the file.
TYPES = {
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}


class Weights:
    """The tensors of a folder by name, as float32. `prefix` may stand before the names in the file."""

    def __init__(self, folder, prefix):
        index = folder / "model.safetensors.index.json"
        names = ["model.safetensors"]
        if index.exists():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        self.tensors = {}
        for name in names:
            with open(folder / name, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            data = np.memmap(folder / name, np.uint8, "r", offset=8 + length)
            for tensor, entry in header.items():
                if tensor != "__metadata__":
                    begin, end = entry["data_offsets"]
                    self.tensors[tensor.removeprefix(prefix)] = (data[begin:end], entry["dtype"], entry["shape"])

    def __contains__(self, name):
        return name in self.tensors

    def get(self, name):
        data, dtype, shape = self.tensors[name]
        if dtype == "BF16":
            wide = data.view("<u2").astype(np.uint32) << 16
            return wide.view(np.float32).reshape(shape)
        kinds = {"F32": "<f4", "F16": "<f2"}
        if dtype not in kinds:
            raise SystemExit(f"{name} is {dtype}; fp32, fp16 and bf16 are read")
        return data.view(kinds[dtype]).astype(np.float32).reshape(shape)


class Writer:
    """A GGUF file; matrices in the type asked for, everything else in float32."""

    def __init__(self, path, architecture, matrix_type):
        # Tensors wait in a file until the header is known: models are larger than memory.
        self.file = gguf.GGUFWriter(path, architecture, use_temp_file=True)
        self.matrix_type = matrix_type

    def add(self, name, tensor):
        tensor = np.ascontiguousarray(tensor)
        keeps = tensor.ndim < 2 or name == "position_embd.weight"
        if keeps or self.matrix_type == gguf.GGMLQuantizationType.F32:
            self.file.add_tensor(name, tensor)
        else:
            packed = gguf.quants.quantize(tensor, self.matrix_type)
            self.file.add_tensor(name, packed, raw_dtype=self.matrix_type)

    def close(self):
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def ids(value):
    return value if isinstance(value, list) else [value] if value is not None else []


def add_tokenizer(writer, folder, config):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model = tokenizer["model"]
    splits = json.dumps(tokenizer["pre_tokenizer"])
    if model["type"] != "BPE" or "ByteLevel" not in splits:
        raise SystemExit("tokenizer.json is no byte-level BPE; others are not written")
    tokens = [f"[PAD{index}]" for index in range(config["vocab_size"])]
    types = [gguf.TokenType.UNUSED] * len(tokens)
    for token, index in model["vocab"].items():
        tokens[index], types[index] = token, gguf.TokenType.NORMAL
    for added in tokenizer.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    own_split = '"Split"' in splits or '"Digits"' in splits
    if '"Digits"' in splits:
        name = "smollm"
    else:
        name = SPLIT_NAMES[config["model_type"]] if own_split else "gpt-2"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    settings = folder / "tokenizer_config.json"
    settings = json.loads(settings.read_text()) if settings.exists() else {}
    ends = [tokens.index(settings["eos_token"])] if settings.get("eos_token") in tokens else []
    ends += ids(config.get("eos_token_id")) or [len(tokens) - 1]
    begin = config.get("bos_token_id")
    writer.add_bos_token_id(ends[0] if begin is None else begin)
    writer.add_eos_token_id(ends[0])
    if len(ends) > 1 and ends[1] != ends[0]:
        writer.add_eot_token_id(ends[1])
    processor = tokenizer.get("post_processor") or {}
    writer.add_add_bos_token("SpecialToken" in processor.get("single", [{}])[0])
    if settings.get("chat_template"):
        writer.add_chat_template(settings["chat_template"])


def write_gpt2(writer, weights, config):
    hidden = config["n_embd"]
    writer.file.add_block_count(config["n_layer"])
    writer.file.add_context_length(config["n_positions"])
    writer.file.add_embedding_length(hidden)
    writer.file.add_feed_forward_length(config.get("n_inner") or 4 * hidden)
    writer.file.add_head_count(config["n_head"])
    writer.file.add_layer_norm_eps(config["layer_norm_epsilon"])
    embedding = weights.get("wte.weight")
    writer.add("token_embd.weight", embedding)
    writer.add("position_embd.weight", weights.get("wpe.weight"))
    for layer in range(config["n_layer"]):
        for name, source, is_linear in GPT2_BLOCK:
            tensor = weights.get(f"h.{layer}.{source}")
            writer.add(f"blk.{layer}.{name}", tensor.T if is_linear else tensor)
    writer.add("output_norm.weight", weights.get("ln_f.weight"))
    writer.add("output_norm.bias", weights.get("ln_f.bias"))
    writer.add("output.weight", embedding)


def neighbours(tensor, heads):
    """Rows i and i + half of each head become neighbours."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def rope_of(config):
    """The base and, for Llama 3, by how much each frequency is divided."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return base, None
    if kind != "llama3":
        raise SystemExit(f"rope_type {kind} is not written")
    head_dim = head_dim_of(config)
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = config.get("original_max_position_embeddings", rope["original_max_position_embeddings"])
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * base ** (2 * pair / head_dim)
        share = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - share) / factor + share))
    return base, np.array(divisors, np.float32)


def head_dim_of(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def write_decoder(writer, weights, config):
    family, heads, head_dim = config["model_type"], config["num_attention_heads"], head_dim_of(config)
    kv_heads = config.get("num_key_value_heads") or heads
    if config.get("use_sliding_window") or config.get("attention_bias") or config.get("mlp_bias"):
        raise SystemExit("windows and biases are not written")
    base, divisors = rope_of(config)
    writer.file.add_vocab_size(config["vocab_size"])
    writer.file.add_block_count(config["num_hidden_layers"])
    writer.file.add_context_length(config["max_position_embeddings"])
    writer.file.add_embedding_length(config["hidden_size"])
    writer.file.add_feed_forward_length(config["intermediate_size"])
    writer.file.add_head_count(heads)
    writer.file.add_head_count_kv(kv_heads)
    writer.file.add_key_length(head_dim)
    writer.file.add_value_length(head_dim)
    writer.file.add_rope_dimension_count(head_dim)
    writer.file.add_rope_freq_base(base)
    writer.file.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add("token_embd.weight", weights.get("embed_tokens.weight"))
    if divisors is not None:
        writer.add("rope_freqs.weight", divisors)
    for layer in range(config["num_hidden_layers"]):
        names = list(DECODER_BLOCK)
        if family == "qwen3":
            names += [("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")]
        for name, source in names:
            tensor = weights.get(f"layers.{layer}.{source}.weight")
            if family == "llama" and name in ("attn_q", "attn_k"):
                tensor = neighbours(tensor, heads if name == "attn_q" else kv_heads)
            writer.add(f"blk.{layer}.{name}.weight", tensor)
    writer.add("output_norm.weight", weights.get("norm.weight"))
    # Without an output matrix llama.cpp takes the embedding.
    if not config.get("tie_word_embeddings", False):
        writer.add("output.weight", weights.get("lm_head.weight"))


FAMILIES = {
    "gpt2": ("transformer.", write_gpt2),
    "llama": ("model.", write_decoder),
    "qwen3": ("model.", write_decoder),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--type", choices=TYPES, default="bf16", help="type of the matrices")
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    family = config["model_type"]
    if family not in FAMILIES:
        raise SystemExit(f"model_type {family} is not written; {', '.join(FAMILIES)} are")
    prefix, write = FAMILIES[family]
    matrix_type, file_type = TYPES[args.type]

    part = args.out.with_name(args.out.name + ".part")
    writer = Writer(part, family, matrix_type)
    writer.file.add_name(args.folder.name)
    writer.file.add_file_type(file_type)
    add_tokenizer(writer.file, args.folder, config)
    write(writer, Weights(args.folder, prefix), config)
    writer.close()
    part.replace(args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.0f} MB, {args.type}")


if __name__ == "__main__":
    main()
