#!/usr/bin/env python3
"""Trains the demo model of this folder from scratch, or evaluates it.

    train.py --text tinyshakespeare.txt --out DIR            train, keep the best checkpoint in DIR
    train.py --text tinyshakespeare.txt --evaluate DIR       held-out loss of the stored weights, and a sample

The result is an ordinary Hugging Face folder: a byte-level BPE tokenizer trained on the first 90 % of the text,
and a GPT-2 (GPT2LMHeadModel) trained on the same part. The last 10 %, by position, is only ever evaluated.
Everything random comes from --seed; one thread and a fixed step count make a run repeatable on one machine.
"""

import argparse
import copy
import json
import math
import pathlib
import random
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
TRAIN_FRACTION = 0.9
STORED_DTYPE = torch.bfloat16

VOCAB_SIZE = 2048
CONTEXT = 512
SHORT_CONTEXT = 256  # most steps use half the context at a random position offset: twice as quick per token
SPEECHES_PER_PASSAGE = 16  # an <|endoftext|> about this often, so that the model can end by itself

SAMPLE_PROMPT = "ROMEO:\n"


def split(text: str) -> tuple[str, str]:
    """The training part and the held-out part, by position."""
    cut = int(len(text) * TRAIN_FRACTION)
    return text[:cut], text[cut:]


def train_tokenizer(text: str) -> Tokenizer:
    """GPT-2's kind of tokenizer: byte-level BPE, no prefix space, one special token (id 0)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def with_endings(text: str, rng: random.Random) -> str:
    """Joins runs of speeches with END_OF_TEXT. Only the training part is treated so."""
    passages, current = [], []
    for speech in text.split("\n\n"):
        current.append(speech)
        if rng.random() < 1 / SPEECHES_PER_PASSAGE:
            passages.append("\n\n".join(current))
            current = []
    passages.append("\n\n".join(current))
    return END_OF_TEXT.join(passages)


def build_model(args: argparse.Namespace) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_positions=CONTEXT,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.heads,
        resid_pdrop=args.dropout,
        embd_pdrop=args.dropout,
        attn_pdrop=0.0,  # with dropout there, the attention would leave its quick kernel
        activation_function="gelu_pytorch_tanh",  # gelu_new in one operation; stored under the usual name
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def batch(ids: torch.Tensor, length: int, count: int, generator: torch.Generator):
    """Random windows [count, length] with targets one later, and the positions that they pretend to have."""
    starts = torch.randint(0, len(ids) - length - 1, (count,), generator=generator)
    windows = torch.stack([ids[s : s + length + 1] for s in starts.tolist()])
    offset = torch.randint(0, CONTEXT - length + 1, (count, 1), generator=generator)
    positions = torch.arange(length).unsqueeze(0) + offset
    return windows[:, :-1], windows[:, 1:], positions


def logits_of(model: GPT2LMHeadModel, inputs: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    return model(input_ids=inputs, position_ids=positions, use_cache=False).logits


@torch.no_grad()
def held_out_nats(model: GPT2LMHeadModel, ids: torch.Tensor, limit: int | None = None) -> tuple[float, int]:
    """Summed loss and token count over consecutive windows. Every token but the first is predicted once, from
    what precedes it in its own window (so a window's first prediction has one token of context)."""
    model.eval()
    total, count = 0.0, 0
    for start in list(range(0, len(ids) - 1, CONTEXT))[:limit]:
        window = ids[start : start + CONTEXT + 1]
        logits = logits_of(model, window[:-1].unsqueeze(0))[0].float()
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
        count += len(window) - 1
    return total, count


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def optimizer_for(model: GPT2LMHeadModel, args: argparse.Namespace) -> torch.optim.AdamW:
    """Weight decay on matrices only, as GPT-2 and its successors do."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))


def save(model: GPT2LMHeadModel, tokenizer: Tokenizer, out: pathlib.Path) -> None:
    """Writes the folder in the stored dtype. `model` itself stays as it is."""
    out.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    config.activation_function = "gelu_new"
    stored = GPT2LMHeadModel(config)
    stored.load_state_dict(model.state_dict())
    stored = stored.to(STORED_DTYPE)
    stored.generation_config = GenerationConfig(
        bos_token_id=0, eos_token_id=0, do_sample=True
    )
    stored.save_pretrained(out)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(out)
    # The class name that transformers 4 and 5 both know; 5 writes one of its own.
    path = out / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n")


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    train_text, held_out_text = split(args.text.read_text(encoding="utf-8"))
    tokenizer = train_tokenizer(train_text)
    ids = torch.tensor(tokenizer.encode(with_endings(train_text, random.Random(args.seed))).ids)
    held_out = torch.tensor(tokenizer.encode(held_out_text).ids)
    model = build_model(args)
    optimizer = optimizer_for(model, args)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters, {len(ids)} training tokens, {len(held_out)} held-out tokens", flush=True)

    best, began, seen = math.inf, time.monotonic(), 0
    for step in range(args.steps):
        length = SHORT_CONTEXT if step < args.steps * args.short_fraction else CONTEXT
        inputs, targets, positions = batch(ids, length, args.batch_tokens // length, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        model.train()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            logits = logits_of(model, inputs, positions)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += inputs.numel()

        done = step + 1
        if done % 25 == 0:
            rate = seen / (time.monotonic() - began)
            print(f"step {done} epoch {seen / len(ids):.2f} loss {loss.item():.3f} {rate:.0f} tok/s", flush=True)
        if done % args.evaluate_every == 0 or done == args.steps:
            nats, count = held_out_nats(model, held_out)
            kept = nats / count < best
            best = min(best, nats / count)
            print(f"step {done} held-out {nats / count:.4f}{' (kept)' if kept else ''}", flush=True)
            if kept:
                save(model, tokenizer, args.out)


def evaluate(args: argparse.Namespace) -> None:
    """The numbers of the model card, from the files as they are stored."""
    torch.manual_seed(args.seed)
    _, held_out_text = split(args.text.read_text(encoding="utf-8"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.evaluate)
    model = GPT2LMHeadModel.from_pretrained(args.evaluate, dtype=torch.float32)
    ids = tokenizer(held_out_text, return_tensors="pt", verbose=False).input_ids[0]
    nats, count = held_out_nats(model, ids)
    first_token_bytes = len(tokenizer.decode(ids[:1]).encode("utf-8"))
    predicted_bytes = len(held_out_text.encode("utf-8")) - first_token_bytes
    report = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "folder_bytes": sum(f.stat().st_size for f in args.evaluate.iterdir() if f.is_file()),
        "held_out_tokens": count,
        "held_out_nats_per_token": round(nats / count, 4),
        "held_out_bits_per_byte": round(nats / math.log(2) / predicted_bytes, 4),
        "bytes_per_token": round(predicted_bytes / count, 3),
    }
    print(json.dumps(report, indent=2))
    prompt = tokenizer(SAMPLE_PROMPT, return_tensors="pt").input_ids
    out = model.generate(prompt, max_new_tokens=200, do_sample=True, temperature=0.8, top_k=50, pad_token_id=0)
    print(tokenizer.decode(out[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, required=True, help="the tinyshakespeare file")
    parser.add_argument("--out", type=pathlib.Path, help="folder to write; training only")
    parser.add_argument("--evaluate", type=pathlib.Path, metavar="DIR", help="evaluate this folder instead")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--short-fraction", type=float, default=0.75, help="share of steps at half context")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--evaluate-every", type=int, default=200)
    parser.add_argument("--autocast", action="store_true", help="bf16 matmuls: quicker where the chip has them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.evaluate:
        evaluate(args)
    elif args.out:
        train(args)
    else:
        parser.error("either --out DIR or --evaluate DIR")


if __name__ == "__main__":
    main()
