#!/usr/bin/env python3
"""Hugging Face transformers on the same card: does it like our tokens, and how fast is it?

    gpu_reference.py --model FOLDER --greedy FILE    judges what `cuda_check greedy` wrote by transformers in fp32
    gpu_reference.py --model FOLDER --baseline       times decode steps and a batch of 128 x 256 -> 64 in fp16

Prints one JSON object a line. Needs torch, transformers and a GPU.
"""
import argparse
import json
import sys
import time

import torch
import transformers

# How far below the reference's likeliest a greedy token may stand, of the largest logit: what the type explains.
TOLERANCES = {"f32": 1e-4, "f16": 0.01, "bf16": 0.05}


def load(folder, dtype):
    # The keyword for the type has changed its name between versions.
    return transformers.GPT2LMHeadModel.from_pretrained(folder).to(dtype).cuda().eval()


def judge(folder, path):
    """Feeds each prompt with what was generated after it, and asks of each token how the reference likes it there."""
    model = load(folder, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = False
    worst = {}
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        for how in ("alone", "together"):
            ids = line[how]
            sequence = torch.tensor([line["prompt"] + ids], device="cuda")
            with torch.inference_mode():
                logits = model(sequence).logits[0, len(line["prompt"]) - 1 : -1].float()
            chosen = logits.gather(1, torch.tensor(ids, device="cuda")[:, None])[:, 0]
            best, _ = logits.max(dim=1)
            behind = ((best - chosen) / logits.abs().max(dim=1).values).max().item()
            equal = int((chosen == best).sum().item())
            seen = worst.setdefault((line["dtype"], how), [0.0, 0, 0])
            worst[line["dtype"], how] = [max(seen[0], behind), seen[1] + equal, seen[2] + len(ids)]
    failed = []
    for (dtype, how), (behind, equal, count) in worst.items():
        print(json.dumps({"against": "transformers " + transformers.__version__ + " in fp32", "dtype": dtype, "prompts": how,
                          "tokens": count, "likeliest": equal, "furthest_behind": behind, "tolerance": TOLERANCES[dtype]}))
        if not behind <= TOLERANCES[dtype]:
            failed.append(f"{dtype} {how}: a token {behind:.2e} behind the likeliest")
    if failed or not worst:
        sys.exit("; ".join(failed) or "nothing to judge")


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
    parser.add_argument("--greedy")
    parser.add_argument("--baseline", action="store_true")
    arguments = parser.parse_args()
    if arguments.greedy:
        judge(arguments.model, arguments.greedy)
    if arguments.baseline:
        baseline(arguments.model)


if __name__ == "__main__":
    main()
