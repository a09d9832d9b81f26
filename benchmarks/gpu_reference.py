#!/usr/bin/env python3
"""Hugging Face transformers on the same card: does it like our tokens, and how fast is it?

    gpu_reference.py --model FOLDER --greedy FILE    judges what `cuda_check greedy` wrote by transformers in fp32
    gpu_reference.py --model FOLDER --baseline       times decode steps and a batch of 128 x 256 -> 64 in fp16
    gpu_reference.py --model FOLDER --trace FILE     writes torch's own trace of one prefill and eight decode steps
    gpu_reference.py --model FOLDER --read FILE      looks at what `cuda_check greedy` wrote, without torch

Prints one JSON object a line. `--read` needs nothing but Python, the others torch and transformers; with `--device cpu`
they need no GPU, and `--small` makes them short.
"""
import argparse
import json
import os
import sys
import time

# How far below the reference's likeliest a greedy token may stand, of the largest logit: what the type explains.
TOLERANCES = {"f32": 1e-4, "f16": 0.01, "bf16": 0.05}
HOW = ("alone", "together")


def generations(folder, path):
    """The lines of `cuda_check greedy`, each with ids of the vocabulary in all its lists and answers of one length."""
    with open(os.path.join(folder, "config.json")) as file:
        vocab = json.load(file)["vocab_size"]
    with open(path) as file:
        lines = [json.loads(line) for line in file if line.startswith("{")]
    for number, line in enumerate(lines):
        if line["dtype"] not in TOLERANCES:
            sys.exit(f"line {number}: there is no tolerance for {line['dtype']}")
        if not line["prompt"] or not len(line["alone"]) == len(line["together"]) > 0:
            sys.exit(f"line {number}: answers of {len(line['alone'])} and {len(line['together'])} tokens")
        if not all(0 <= token < vocab for token in line["prompt"] + line["alone"] + line["together"]):
            sys.exit(f"line {number}: an id is not in the vocabulary of {vocab}")
    if {line["dtype"] for line in lines} != set(TOLERANCES):
        sys.exit(f"{path} lacks a dtype or holds nothing")
    return lines


def read(folder, path):
    """How often a token is the same alone and in a batch; the first that is not decides all after it."""
    counts = {}
    for line in generations(folder, path):
        equal = sum(1 for a, b in zip(line["alone"], line["together"]) if a == b)
        before = counts.get(line["dtype"], (0, 0))
        counts[line["dtype"]] = (before[0] + equal, before[1] + len(line["alone"]))
    for dtype, (equal, count) in counts.items():
        print(json.dumps({"dtype": dtype, "tokens": count, "equal_alone_and_together": equal}))


def load(folder, dtype, device):
    import transformers

    # The keyword for the type has changed its name between versions.
    return transformers.AutoModelForCausalLM.from_pretrained(folder).to(dtype).to(device).eval()


def judge(folder, path, device):
    """Feeds each prompt with what was generated after it, and asks of each token how the reference likes it there."""
    import torch
    import transformers

    lines = generations(folder, path)
    model = load(folder, torch.float32, device)
    torch.backends.cuda.matmul.allow_tf32 = False
    worst = {}
    for line in lines:
        for how in HOW:
            ids = line[how]
            sequence = torch.tensor([line["prompt"] + ids], device=device)
            with torch.inference_mode():
                logits = model(sequence).logits[0, len(line["prompt"]) - 1 : -1].float()
            chosen = logits.gather(1, torch.tensor(ids, device=device)[:, None])[:, 0]
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
    if failed:
        sys.exit("; ".join(failed))


def generate(model, rows, inputs, outputs):
    """Seconds for a batch of random prompts, from start to the last token."""
    import torch

    def wait():
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    prompt = torch.randint(0, model.config.vocab_size, (rows, inputs), device=model.device)
    wait()
    began = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=outputs, min_new_tokens=outputs,
                             do_sample=False, pad_token_id=0)
    wait()
    seconds = time.perf_counter() - began
    if out.shape != (rows, inputs + outputs):
        sys.exit(f"transformers gave {tuple(out.shape)} for {rows} x {inputs} -> {outputs}")
    return seconds


def baseline(folder, device, small):
    import torch

    dtype, name = (torch.float16, "fp16") if device == "cuda" else (torch.float32, "fp32")
    model = load(folder, dtype, device)
    inputs, steps, batches = (16, 4, (1, 2)) if small else (256, 32, (1, 8, 32, 128))
    for rows in batches:
        # The first of a shape loads kernels.
        generate(model, rows, inputs, 4)
        # The least of three: what else the machine does only adds.
        short, long = (min(generate(model, rows, inputs, outputs) for _ in range(3)) for outputs in (4, 4 + steps))
        print(json.dumps({"rows": rows, "context": inputs, "step_ms": (long - short) / steps * 1e3,
                          "by": f"transformers generate, {name}"}), flush=True)
    rows, outputs = (batches[-1], 4) if small else (128, 64)
    seconds = generate(model, rows, inputs, outputs)
    print(json.dumps({"offline": f"{rows} x {inputs} -> {outputs}", "seconds": seconds, "output_tokens_per_s": rows * outputs / seconds,
                      "by": f"transformers generate, {name}"}))


def trace(folder, path, device):
    """What the card runs under transformers: the same view of a reference that `nsys` gives of ours."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    model = load(folder, torch.float16 if device == "cuda" else torch.float32, device)
    generate(model, 1, 16, 4)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as profiled:
        generate(model, 1, 16, 8)
    profiled.export_chrome_trace(path)
    print(json.dumps({"trace": os.path.basename(path), "bytes": os.path.getsize(path)}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--greedy", metavar="FILE")
    task.add_argument("--read", metavar="FILE")
    task.add_argument("--baseline", action="store_true")
    task.add_argument("--trace", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.greedy:
        judge(arguments.model, arguments.greedy, arguments.device)
    elif arguments.read:
        read(arguments.model, arguments.read)
    elif arguments.trace:
        trace(arguments.model, arguments.trace, arguments.device)
    else:
        baseline(arguments.model, arguments.device, arguments.small)


if __name__ == "__main__":
    main()
