#!/usr/bin/env python3
"""Holds Pinion to transformers on the config.json of published checkpoints, with tiny sizes and random weights.

    run.py [--server BIN] [--saved] [NAME ...]         all of cases.json, or the named ones

Each config.json of cases.json keeps all of its keys but gets small sizes (shrink.py). transformers makes the model,
with random weights, and writes model.safetensors; `pinion serve` serves the folder in fp32. Both continue random
prompts of 3, 40 and 200 ids by 8 greedy tokens; transformers runs in fp32, eager, without a cache. The exit code is 1
if an id differs, if the log-probability of a token differs by more than 1e-4, or if one of the two does not take the
folder.

With --saved the server gets config.json as transformers itself saves it, in place of the published keys.

It wants transformers and torch in the versions of requirements.txt (PyPI's torch brings CUDA: gigabytes on Linux):

    python3 -m venv ~/.cache/pinion/published-configs
    ~/.cache/pinion/published-configs/bin/pip install -r benchmarks/checks/published_configs/requirements.txt
    ~/.cache/pinion/published-configs/bin/python benchmarks/checks/published_configs/run.py

A case of cases.json:
  origin            "repository": the text was found in a public repository; "repository, in part": some of its keys
                    were; "memory": not held against the file of the checkpoint; "variant": made here
  keys              of config.json; with `like`, those that differ from that case's, and `without` names those it lacks
  prompts           lengths other than 3, 40 and 200
  max_model_len     given to the server
  for_transformers  keys that transformers gets in place of the published ones
  head              of a tied model, in the files: it "differs" from the embeddings, is "copied", or stands "alone"
The factors of longrope are made up, 8 where published files have 48: a tiny head has no more pairs.
"""

import argparse
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
except ImportError as error:
    print(f"{error}\n\n{__doc__}", file=sys.stderr)
    sys.exit(2)

from shrink import PROMPT_IDS, shrink

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TOKENIZER = ROOT / "deploy/demo-model/tokenizer.json"
PROMPTS = [3, 40, 200]
TOKENS = 8
TOLERANCE = 1e-4
READY_S = 60


def read_cases():
    cases = {case["name"]: case for case in json.loads((HERE / "cases.json").read_text())}

    def keys(case):
        base = keys(cases[case["like"]]) if "like" in case else {}
        return {key: base[key] for key in base if key not in case.get("without", [])} | case.get("keys", {})

    return {name: case | {"keys": keys(case)} for name, case in cases.items()}


def build(folder, case, keys):
    """Makes transformers' model, writes its weights and config.saved.json, and gives the model."""
    config = folder / "config.json"
    config.write_text(json.dumps(keys | case.get("for_transformers", {})))
    auto = AutoModelForImageTextToText if "text_config" in keys else AutoModelForCausalLM
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    model = auto.from_config(AutoConfig.from_pretrained(folder), **options).eval()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        parameter.data = weights(name, parameter, keys)
    model.tie_weights()
    model.save_pretrained(folder)
    shutil.copy(config, folder / "config.saved.json")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if "head" in case:
        move_head(folder / "model.safetensors", case["head"])
        model = auto.from_pretrained(folder, **options).eval()
    config.write_text(json.dumps(keys))
    return model


def weights(name, parameter, keys):
    """Random, and small embeddings: otherwise the answer is the last token of the prompt again."""
    noise, model_type = torch.randn_like(parameter), keys.get("text_config", keys)["model_type"]
    if name.endswith("bias"):
        return 0.2 * noise
    if "norm" in name or ".ln_" in name:
        return (0.0 if model_type.startswith("gemma") else 1.0) + 0.3 * noise
    if "embed_tokens" in name or "wte" in name or "wpe" in name:
        is_gemma = model_type.startswith("gemma")
        return 0.2 / (math.sqrt(parameter.shape[1]) if is_gemma else keys.get("embedding_multiplier", 1.0)) * noise
    return 1.2 / math.sqrt(parameter.shape[0 if model_type == "gpt2" else -1]) * noise


def move_head(path, head):
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("model.embed_tokens.weight"))
    embeddings = tensors[name]
    head_name = name.replace("model.embed_tokens", "lm_head")
    tensors[head_name] = torch.randn_like(embeddings) / 8 if head == "differs" else embeddings.clone()
    if head == "alone":
        del tensors[name]
    save_file(tensors, path, metadata={"format": "pt"})


def expected(model, prompt):
    """(ids, log-probabilities) of transformers: each step a full forward pass."""
    ids, logprobs = list(prompt), []
    with torch.no_grad():
        for _ in range(TOKENS):
            values = torch.log_softmax(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float(), -1)
            ids.append(int(values.argmax()))
            logprobs.append(float(values.max()))
    return ids[len(prompt):], logprobs


def answered(port, prompt):
    """(ids, log-probabilities) of the server."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
            "logprobs": 1, "return_token_ids": True}
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        choice = json.load(reply)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def start(server, folder, case):
    """(process, port); the port is None if the server does not serve."""
    more = ["--max-model-len", str(case["max_model_len"])] if "max_model_len" in case else []
    command = [server, "serve", folder, "--port", "0", "--dtype", "fp32", "--kv-cache-tokens", "4096",
               "--engine-threads", "1", "--no-spare-engine", "--served-model-name", "tiny", *more]
    log = folder / "serve.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        if address := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text()):
            return process, int(address[1])
        time.sleep(0.05)
    return process, None


def stop(process):
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def compare(options, folder, case):
    """(fault or None, largest difference of a log-probability)"""
    try:
        model = build(folder, case, shrink(case["keys"]))
    except Exception as error:  # of many kinds; the case fails, the others run
        return f"transformers: {type(error).__name__}: {error}", 0.0
    if options.saved:
        shutil.copy(folder / "config.saved.json", folder / "config.json")
    shutil.copy(TOKENIZER, folder)
    process, port = start(options.server, folder, case)
    try:
        if port is None:
            return "not served: " + (folder / "serve.log").read_text().strip().splitlines()[-1], 0.0
        draw, largest = random.Random(5), 0.0
        for length in case.get("prompts", PROMPTS):
            prompt = [draw.choice(PROMPT_IDS) for _ in range(length)]
            (ids, logprobs), (own_ids, own_logprobs) = expected(model, prompt), answered(port, prompt)
            if ids != own_ids:
                return f"prompt of {length}: {own_ids}, transformers {ids}", largest
            largest = max(largest, *(abs(one - other) for one, other in zip(logprobs, own_logprobs, strict=True)))
        return (f"differs by more than {TOLERANCE}" if largest > TOLERANCE else None), largest
    except OSError as error:
        return f"request: {error}", 0.0
    finally:
        stop(process)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=ROOT / "target/release/pinion", help="default: target/release/pinion")
    parser.add_argument("--saved", action="store_true", help="serve config.json as transformers saves it")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options, cases = parser.parse_args(), read_cases()
    pins = dict(line.split("==") for line in (HERE / "requirements.txt").read_text().split())
    for package in (torch, transformers):
        if package.__version__.split("+")[0] != pins[package.__name__]:
            parser.error(f"{package.__name__} is {package.__version__}, not {pins[package.__name__]}: see --help")
    if unknown := set(options.names) - set(cases):
        parser.error(f"not in cases.json: {', '.join(sorted(unknown))}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    names, failed, most = options.names or list(cases), 0, 0.0
    print(f"{'case':24} {'origin':20} {'difference':>10}  result")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            fault, largest = compare(options, pathlib.Path(folder), cases[name])
        failed, most = failed + (fault is not None), max(most, largest)
        print(f"{name:24} {cases[name]['origin']:20} {largest:10.1e}  {fault or 'same'}", flush=True)
    print(f"{len(names) - failed} of {len(names)} as transformers {transformers.__version__}: the same ids, "
          f"log-probabilities {most:.1e} apart at most")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
