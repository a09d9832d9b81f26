#!/usr/bin/env python3
"""Holds the loglikelihoods that lm-eval got from a server against a computation of our own.

    compare.py MODEL_DIR SAMPLES.jsonl [TOLERANCE]

MODEL_DIR is a GPT-2 folder (config.json, model.safetensors, tokenizer.json), SAMPLES what `lm_eval --log_samples` wrote.
The model here is forty lines of numpy in fp32: no part of it is shared with the server. It runs in lm-eval's environment.
"""

import json
import math
import pathlib
import sys

import numpy as np


def tensors(path):
    """All tensors in fp32, without the prefix of the language-model head's file."""
    header_len = int.from_bytes(path.open("rb").read(8), "little")
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + header_len])
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = raw[8 + header_len + begin : 8 + header_len + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
        out[name.removeprefix("transformer.")] = values.reshape(entry["shape"])
    return out


def norm(x, weight, bias, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * weight + bias


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def logprobs(w, config, ids):
    """[tokens, vocab]: what follows each position."""
    heads, epsilon, count = config["n_head"], config["layer_norm_epsilon"], len(ids)
    x = w["wte.weight"][ids] + w["wpe.weight"][:count]
    width = x.shape[1] // heads
    hidden = np.triu(np.full((count, count), -np.inf, np.float32), 1)
    for layer in range(config["n_layer"]):
        p = lambda name: w[f"h.{layer}.{name}"]
        y = norm(x, p("ln_1.weight"), p("ln_1.bias"), epsilon) @ p("attn.c_attn.weight") + p("attn.c_attn.bias")
        q, k, v = (part.reshape(count, heads, width).transpose(1, 0, 2) for part in np.split(y, 3, -1))
        attention = np.exp(log_softmax(q @ k.transpose(0, 2, 1) / math.sqrt(width) + hidden))
        x = x + (attention @ v).transpose(1, 0, 2).reshape(count, -1) @ p("attn.c_proj.weight") + p("attn.c_proj.bias")
        y = norm(x, p("ln_2.weight"), p("ln_2.bias"), epsilon) @ p("mlp.c_fc.weight") + p("mlp.c_fc.bias")
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + y @ p("mlp.c_proj.weight") + p("mlp.c_proj.bias")
    return log_softmax(norm(x, w["ln_f.weight"], w["ln_f.bias"], epsilon) @ w["wte.weight"].T)


def main():
    from tokenizers import Tokenizer  # here, as benchmarks/checks/same_text.py takes the model and not the tokenizer

    folder, samples = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    tolerance = float(sys.argv[3]) if len(sys.argv) > 3 else 0.01
    config = json.loads((folder / "config.json").read_text())
    w, tokenizer = tensors(folder / "model.safetensors"), Tokenizer.from_file(str(folder / "tokenizer.json"))
    largest, count, greedy_same = 0.0, 0, 0
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        requests, answers = sample["arguments"], sample["resps"]
        if isinstance(requests, dict):
            requests = [[request["arg_0"], request["arg_1"]] for request in requests.values()]
        for (context, ending), answer in zip(requests, answers, strict=True):
            (told, is_greedy), = answer if isinstance(answer[0], list) else [answer]
            ids = tokenizer.encode(context + ending).ids
            begin = len(tokenizer.encode(context).ids)
            said = logprobs(w, config, ids[:-1])[begin - 1 :]
            own = said[np.arange(len(ids) - begin), ids[begin:]].sum()
            largest, count = max(largest, abs(float(told) - float(own))), count + 1
            greedy = bool((said.argmax(-1) == ids[begin:]).all())
            greedy_same += greedy == (str(is_greedy) == "True")
    print(f"{count} loglikelihoods, largest difference {largest:.2e}, {greedy_same} agree on greedy")
    if count == 0 or largest > tolerance or greedy_same != count:
        sys.exit(f"the server's loglikelihoods are not the model's (tolerance {tolerance})")


if __name__ == "__main__":
    main()
