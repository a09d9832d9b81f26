"""Writes a GPT-2 folder of Hugging Face's layout as GGUF, for llama.cpp's `gpt2` architecture.

Needs the packages `gguf`, `numpy` and `safetensors`; benchmarks/peers/llama_server.sh sets them up. GPT-2's linear
weights stand in the file as [in, out] and are turned to llama.cpp's [out, in]; the output matrix is the embedding.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from safetensors import safe_open

# Of one block: GGUF's name, the file's name, and whether it is a linear weight that is turned.
BLOCK = [
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


class Weights:
    """The tensors by name, with or without the `transformer.` in front, as float32."""

    def __init__(self, path):
        self.file = safe_open(path, framework="numpy")
        self.names = {name.removeprefix("transformer."): name for name in self.file.keys()}

    def get(self, name):
        try:
            tensor = self.file.get_tensor(self.names[name])
        except TypeError:  # numpy has no bfloat16
            raise SystemExit(f"{name} is bfloat16: make the folder with --dtype f32") from None
        return tensor.astype(np.float32)


def add_tensor(writer, name, tensor, matrix_type):
    """Matrices in the type asked for, everything else in float32."""
    tensor = np.ascontiguousarray(tensor)
    if tensor.ndim < 2 or name == "position_embd.weight" or matrix_type == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, tensor)
    else:
        writer.add_tensor(name, gguf.quants.quantize(tensor, matrix_type), raw_dtype=matrix_type)


def add_tokenizer(writer, folder, config):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model = tokenizer["model"]
    tokens = [f"[PAD{index}]" for index in range(config["vocab_size"])]
    types = [gguf.TokenType.UNUSED] * len(tokens)
    for token, index in model["vocab"].items():
        tokens[index], types[index] = token, gguf.TokenType.NORMAL
    for added in tokenizer.get("added_tokens", []):
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    end = config.get("eos_token_id", len(tokens) - 1)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)  # as Pinion: the prompt is what was sent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--type", choices=["bf16", "f32"], default="bf16", help="type of the matrices")
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    weights = Weights(args.folder / "model.safetensors")
    matrix_type = gguf.GGMLQuantizationType.BF16 if args.type == "bf16" else gguf.GGMLQuantizationType.F32
    hidden = config["n_embd"]

    part = args.out.with_name(args.out.name + ".part")
    writer = gguf.GGUFWriter(part, "gpt2")
    writer.add_name(args.folder.name)
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config.get("n_inner") or 4 * hidden)
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if args.type == "bf16" else gguf.LlamaFileType.ALL_F32)
    add_tokenizer(writer, args.folder, config)

    embedding = weights.get("wte.weight")
    add_tensor(writer, "token_embd.weight", embedding, matrix_type)
    add_tensor(writer, "position_embd.weight", weights.get("wpe.weight"), matrix_type)
    for layer in range(config["n_layer"]):
        for name, source, is_linear in BLOCK:
            tensor = weights.get(f"h.{layer}.{source}")
            add_tensor(writer, f"blk.{layer}.{name}", tensor.T if is_linear else tensor, matrix_type)
    add_tensor(writer, "output_norm.weight", weights.get("ln_f.weight"), matrix_type)
    add_tensor(writer, "output_norm.bias", weights.get("ln_f.bias"), matrix_type)
    add_tensor(writer, "output.weight", embedding, matrix_type)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.0f} MB, {args.type}")


if __name__ == "__main__":
    main()
