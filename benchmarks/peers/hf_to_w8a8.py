"""Writes a folder of Hugging Face's layout with int8 weights, as compressed-tensors has them, for vLLM: GPT-2, Llama, Qwen3.

vLLM's `--quantization int8_per_channel_weight_only` leaves linear layers as they are, so the weights are made here: a scale
for each output, activations to 8 bits for each token when the model runs. Embedding and head stay, since vLLM reads no
quantised head of this form. `vllm_cpu.sh convert` runs it in vLLM's environment.
"""
import argparse
import json
import pathlib
import re
import shutil

import safetensors.torch
import torch

LINEAR = re.compile(r"(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj|attn\.c_attn|(attn|mlp)\.c_proj|mlp\.c_fc)\.weight$")
# GPT-2's linear weights stand in the file as [in, out].
TURNED = re.compile(r"\.c_(attn|proj|fc)\.weight$")

EIGHT_BITS = {"num_bits": 8, "type": "int", "symmetric": True}
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**EIGHT_BITS, "strategy": "channel", "dynamic": False},
            "input_activations": {**EIGHT_BITS, "strategy": "token", "dynamic": True},
        }
    },
}


def quantised(name, tensor):
    """The tensors that stand for one: itself, or integers and a scale for each output."""
    if not LINEAR.search(name):
        return {name: tensor}
    inputs = 0 if TURNED.search(name) else 1
    wide = tensor.float()
    scale = (wide.abs().amax(inputs, keepdim=True) / 127).clamp(min=1e-10)
    integers = (wide / scale).round().clamp(-127, 127).to(torch.int8)
    return {name: integers, f"{name}_scale": scale.reshape(-1, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    tensors, count = {}, 0
    for path in sorted(args.folder.glob("*.safetensors")):
        for name, tensor in safetensors.torch.load_file(path).items():
            made = quantised(name, tensor)
            count += len(made) - 1
            tensors.update(made)
    if count == 0:
        raise SystemExit(f"{args.folder} has no linear weights of GPT-2, Llama or Qwen3")
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.folder.glob("*.json"):
        if path.name != "model.safetensors.index.json":
            shutil.copy(path, args.out)
    config = json.loads((args.folder / "config.json").read_text())
    (args.out / "config.json").write_text(json.dumps({**config, "quantization_config": SCHEME}, indent=2))
    safetensors.torch.save_file(tensors, args.out / "model.safetensors", {"format": "pt"})
    print(f"{args.out}: {count} linear weights in 8 bits")


if __name__ == "__main__":
    main()
