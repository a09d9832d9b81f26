#!/usr/bin/env python3
"""Writes the goldens of GGUF files: tiny random models written by the package `gguf`, with the logits of the numbers that it
unpacks, computed in float64, and the same tokenizer as a tokenizer.json.

    make_gguf.py OUT_DIR       OUT_DIR is crates/model/tests/gguf_goldens; needs gguf 0.19.0 and numpy 2.4.6

OUT_DIR/<name>.gguf, and <name>.json with {"cases": [{"prompt": [ids], "logits": [..]}], "context": the longest sequence,
"ends": [ids], "keeps": whether integers are kept, "tokenizer": tokenizer.json, "template": the chat template or null}.
OUT_DIR/blocks.json: for each type some blocks of bytes and their numbers. And one model three times: the folder
OUT_DIR/plain with safetensors in F32, plain-f32.gguf, and plain-f16.gguf with matrices in F16, which hold the same numbers.
"""

import json
import pathlib
import sys

import gguf
import numpy
from gguf import GGMLQuantizationType as T

from make_prequantized import logits, mixed

PROMPTS = [[5, 260, 1, 33], [7], [12, 40, 141, 2, 2, 63, 19, 258, 230, 11, 54, 3]]
HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 2, 1, 256, 2
K_TYPES = {T.Q4_K: 4, T.Q5_K: 4, T.Q6_K: 0}
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{{ eos_token }}{% endfor %}"


def uniform(name, shape, base, spread):
    u = (mixed(name, int(numpy.prod(shape))) >> numpy.uint64(40)).astype(numpy.float32)
    return (numpy.float32(base) + numpy.float32(spread) * (u / numpy.float32(2**23) - 1)).reshape(shape)


def k_blocks(name, kind, blocks):
    """Random bits with scales that give numbers of about the size of the others'."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    bits = (mixed(name, blocks * size) >> numpy.uint64(56)).astype(numpy.uint8).reshape(blocks, size)
    scales = numpy.abs(uniform(name + "scale", (blocks, 2), 0.001, 0.0005)).astype(numpy.float16)
    if kind == T.Q6_K:
        bits[:, 208:210] = (scales[:, :1] / numpy.float16(16)).view(numpy.uint8)
    else:
        bits[:, :4] = scales.view(numpy.uint8)
    return bits


def stored(name, shape, kind, base, spread):
    """The bytes of a tensor and the numbers that they stand for."""
    if kind in K_TYPES:
        blocks = k_blocks(name, kind, int(numpy.prod(shape)) // 256).reshape(*shape[:-1], -1)
    else:
        blocks = gguf.quants.quantize(uniform(name, shape, base, spread), kind)
    return blocks, gguf.quants.dequantize(blocks, kind).reshape(shape).astype(numpy.float64)


def spelling():
    """GPT-2's characters for bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte if byte in shown else next(rest)) for byte in range(256)]


def byte_level(writer, pre, splits, normalizer, ignore_merges, add_bos):
    characters = spelling()
    pairs = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("1", "2"), ("12", "3"), ("e", "r"), ("Ã", "©")]
    tokens = characters + [left + right for left, right in pairs] + ["<bos>", "<eos>", "<turn>", "<think>"]
    kinds = [gguf.TokenType.NORMAL] * (len(tokens) - 4) + [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.USER_DEFINED]
    # More rows than tokens, as some converters write.
    names = tokens + [f"[PAD{at}]" for at in range(5)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(names)
    writer.add_token_types(kinds + [gguf.TokenType.UNUSED] * 5)
    writer.add_token_merges([f"{left} {right}" for left, right in pairs])
    bos = tokens.index("<bos>")
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(bos + 1)
    writer.add_eot_token_id(bos + 2)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    added = [{"id": bos + at, "content": tokens[bos + at], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": at < 3} for at in range(4)]
    begins = {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
              "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
              "special_tokens": {"<bos>": {"id": "<bos>", "ids": [bos], "tokens": ["<bos>"]}}}
    has_bos = pre == "llama-bpe" if add_bos is None else add_bos
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
            "post_processor": begins if has_bos else None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": ignore_merges, "vocab": {token: at for at, token in enumerate(names)},
                      "merges": [list(pair) for pair in pairs]}}, len(names), [bos + 1, bos + 2]


def pieces(writer):
    found = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    merged = ["▁t", "th", "he", "▁the", "er", "▁▁"]
    singles = ["▁", *"abcdefghijklmnopqrstuvwxyz.,"]
    tokens = found + merged + singles
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(at) for at in range(len(merged) + len(singles))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    added = [{"id": at, "content": tokens[at], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for at in (0, 1, 2)]
    begins = {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
              "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
              "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    # Written by hand: for each piece, best first, what makes it.
    merges = [["▁", "t"], ["t", "h"], ["h", "e"], ["▁", "the"], ["▁t", "he"], ["e", "r"], ["▁", "▁"]]
    merges = [merge for merge in merges if merge != ["▁", "the"]]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "pre_tokenizer": None, "post_processor": begins,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": {token: at for at, token in enumerate(tokens)}, "merges": merges}}, len(tokens), [2]


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = BYTES | {"use_regex": True}


def split(expression):
    return [{"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}, BYTES]


def neighbours(tensor, heads):
    """Rows i and i + half of each head become neighbours, as llama.cpp's converter turns Llama's."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


# Family, types of embedding, attention, gate and up, down of each layer; tokenizer; whether the head is tied.
MODELS = {
    "llama": ("llama", [T.Q8_0, T.Q4_0, T.Q4_0, (T.Q4_K, T.Q6_K)],
              lambda writer: byte_level(writer, "llama-bpe", split(LLAMA3), None, True, None), False),
    "llama-pieces": ("llama", [T.F16, T.Q8_0, T.Q4_1, (T.Q4_0, T.Q8_0)], pieces, True),
    "qwen2": ("qwen2", [T.Q4_0, T.Q5_0, T.Q8_0, (T.Q6_K, T.Q5_K)],
              lambda writer: byte_level(writer, "qwen2", split(LLAMA3.replace("{1,3}", "")), {"type": "NFC"}, False,
                                        False), True),
    "qwen3": ("qwen3", [T.BF16, T.F32, T.Q5_1, (T.F16, T.Q4_K)],
              lambda writer: byte_level(writer, "smollm", [{"type": "Digits", "individual_digits": True}, GPT2], None,
                                        False, True), False),
}


def add_shape(writer, hidden, inner, context):
    writer.add_block_count(LAYERS)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(50000.0)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def parts(family, hidden, inner, vocab, tied, kinds):
    """Name in a file, name in a checkpoint, shape, type, base, spread, heads whose rows llama.cpp turns."""
    embedding, attention, gates, downs = kinds
    yield "token_embd.weight", "model.embed_tokens.weight", (vocab, hidden), embedding, 0.0, 1.0, None
    yield "output_norm.weight", "model.norm.weight", (hidden,), T.F32, 1.0, 0.5, None
    if not tied:
        yield "output.weight", "lm_head.weight", (vocab, hidden), T.Q8_0, 0.0, 0.25, None
    head_dim = hidden // HEADS
    width = KV_HEADS * head_dim
    for layer in range(LAYERS):
        to, of = f"blk.{layer}.", f"model.layers.{layer}."
        yield to + "attn_norm.weight", of + "input_layernorm.weight", (hidden,), T.F32, 1.0, 0.5, None
        yield to + "ffn_norm.weight", of + "post_attention_layernorm.weight", (hidden,), T.F32, 1.0, 0.5, None
        for part, rows, heads in [("q", hidden, HEADS), ("k", width, KV_HEADS), ("v", width, None)]:
            source = of + f"self_attn.{part}_proj."
            yield f"{to}attn_{part}.weight", source + "weight", (rows, hidden), attention, 0.0, 0.25, heads
            if family == "qwen2":
                yield f"{to}attn_{part}.bias", source + "bias", (rows,), T.F32, 0.0, 0.25, heads
            if family == "qwen3" and part != "v":
                norm = of + f"self_attn.{part}_norm.weight"
                yield f"{to}attn_{part}_norm.weight", norm, (head_dim,), T.F32, 1.0, 0.5, None
        yield to + "attn_output.weight", of + "self_attn.o_proj.weight", (hidden, hidden), attention, 0.0, 0.25, None
        for part in ["gate", "up"]:
            yield f"{to}ffn_{part}.weight", of + f"mlp.{part}_proj.weight", (inner, hidden), gates, 0.0, 0.25, None
        yield to + "ffn_down.weight", of + "mlp.down_proj.weight", (hidden, inner), downs[layer], 0.0, 0.125, None


def write(out, name, family, types, tokenizer, tied):
    writer = gguf.GGUFWriter(out / f"{name}.gguf", family)
    text, vocab, ends = tokenizer(writer)
    head_dim, context = HIDDEN // HEADS, 96
    add_shape(writer, HIDDEN, INNER, context)
    if family == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if name != "qwen2":
        writer.add_chat_template(TEMPLATE)
    weights, divisors = {}, 1.0
    if name == "llama":
        divisors = numpy.concatenate([numpy.ones(8), numpy.linspace(1, 8, 8)]).astype(numpy.float32)
        writer.add_tensor("rope_freqs.weight", divisors)
    for target, source, shape, kind, base, spread, heads in parts(family, HIDDEN, INNER, vocab, tied, types):
        blocks, numbers = stored(name + source, shape, kind, base, spread)
        # The rows of a matrix are blocks of their own, so they can be turned as they are.
        blocks = neighbours(blocks, heads) if family == "llama" and heads else blocks
        writer.add_tensor(target, blocks, raw_dtype=kind)
        weights[source] = numbers
    finish(writer)
    cases = [{"prompt": prompt, "logits": [float(f"{v:.8g}") for v in
                                           logits(weights, prompt, head_dim, LAYERS, 50000.0, divisors)]}
             for prompt in PROMPTS]
    golden = {"cases": cases, "context": context, "ends": ends, "keeps": T.Q4_0 in [*types[:3], *types[3]],
              "tokenizer": text, "template": None if name == "qwen2" else TEMPLATE}
    (out / f"{name}.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def safetensors(path, tensors):
    header, at = {}, 0
    for name, numbers in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(numbers.shape), "data_offsets": [at, at + numbers.nbytes]}
        at += numbers.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(n.tobytes() for n in tensors.values()))


def plain(out):
    """The numbers are those of F16, so that all three hold the same."""
    folder, hidden, inner, context = out / "plain", 32, 64, 96
    folder.mkdir(exist_ok=True)
    for kind in [T.F32, T.F16]:
        writer = gguf.GGUFWriter(out / f"plain-{kind.name.lower()}.gguf", "llama")
        text, vocab, ends = byte_level(writer, "llama-bpe", split(LLAMA3), None, True, None)
        add_shape(writer, hidden, inner, context)
        writer.add_vocab_size(vocab)
        writer.add_rope_dimension_count(hidden // HEADS)
        writer.add_sampling_temp(0.5)
        writer.add_chat_template(TEMPLATE)
        weights = {}
        kinds = [kind, kind, kind, (kind, kind)]
        for target, source, shape, kind, base, spread, heads in parts("llama", hidden, inner, vocab, True, kinds):
            numbers = uniform("plain" + source, shape, base, spread).astype(numpy.float16)
            turned = neighbours(numbers, heads) if heads else numbers
            writer.add_tensor(target, turned.astype(numpy.float16 if kind == T.F16 else numpy.float32))
            weights[source] = numbers.astype(numpy.float32)
        finish(writer)
    safetensors(folder / "model.safetensors", weights)
    tokens = list(text["model"]["vocab"])
    files = {
        "config.json": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
                        "intermediate_size": inner, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
                        "num_key_value_heads": KV_HEADS, "vocab_size": vocab, "max_position_embeddings": context,
                        "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "tie_word_embeddings": True,
                        "eos_token_id": ends},
        "generation_config.json": {"temperature": 0.5},
        "tokenizer.json": text,
        "tokenizer_config.json": {"bos_token": tokens[ends[0] - 1], "eos_token": tokens[ends[0]],
                                  "chat_template": TEMPLATE},
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def main():
    out = pathlib.Path(sys.argv[1])
    blocks = {}
    for kind in [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K]:
        packed, numbers = stored(kind.name, (2, 256), kind, 0.0, 1.0)
        row = numpy.ascontiguousarray(packed[:1]).tobytes().hex()
        blocks[kind.name] = {"number": int(kind), "bytes": row, "values": [float(f"{v:.9g}") for v in numbers[0]]}
    (out / "blocks.json").write_text(json.dumps(blocks, separators=(",", ":")) + "\n")
    for name, model in MODELS.items():
        write(out, name, *model)
    plain(out)


if __name__ == "__main__":
    main()
