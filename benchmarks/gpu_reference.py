#!/usr/bin/env python3
"""Hugging Face transformers on the same card: are our logits its logits, and how fast is it?

    gpu_reference.py --model FOLDER --logits FILE    compares what `cuda_check logits` wrote with transformers in fp32
    gpu_reference.py --model FOLDER --baseline       times decode steps and a batch of 128 x 256 -> 64 in fp16

Prints one JSON object a line. Needs torch, transformers and a GPU.
"""
import argparse
import json
import sys
import time

import torch
import transformers

TOLERANCE = 1e-4


def load(folder, dtype):
    return transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=dtype).cuda().eval()


def compare(folder, path):
    model = load(folder, torch.float32)
    vocab = model.config.vocab_size
    prompt = torch.tensor([[(i + 40) * 7919 % vocab for i in range(40)]], device="cuda")
    with torch.inference_mode():
        want = model(prompt).logits[0, -1].float().cpu()
    with open(path, "rb") as file:
        have = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
    error = ((have - want).abs().max() / want.abs().max()).item()
    print(json.dumps({"against": "transformers " + transformers.__version__, "relative_error": error, "tolerance": TOLERANCE}))
    if not error <= TOLERANCE or have.argmax() != want.argmax():
        sys.exit(f"relative error {error:e}")


def generate(model, rows, inputs, outputs):
    prompt = torch.randint(0, model.config.vocab_size, (rows, inputs), device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    with torch.inference_mode():
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=outputs, min_new_tokens=outputs,
                       do_sample=False, pad_token_id=0)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def baseline(folder):
    model = load(folder, torch.float16)
    generate(model, 1, 16, 4)
    for rows in (1, 8, 32, 128):
        short, long = generate(model, rows, 256, 4), generate(model, rows, 256, 36)
        print(json.dumps({"rows": rows, "context": 256, "step_ms": (long - short) / 32 * 1e3, "by": "transformers generate, fp16"}))
    seconds = generate(model, 128, 256, 64)
    print(json.dumps({"offline": "128 x 256 -> 64", "seconds": seconds, "output_tokens_per_s": 128 * 64 / seconds}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--logits")
    parser.add_argument("--baseline", action="store_true")
    arguments = parser.parse_args()
    if arguments.logits:
        compare(arguments.model, arguments.logits)
    if arguments.baseline:
        baseline(arguments.model)


if __name__ == "__main__":
    main()
