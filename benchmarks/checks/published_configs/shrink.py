"""Small sizes for a published config.json; its other keys stay.

Few layers, few narrow heads, 2048 ids (those of deploy/demo-model's tokenizer), and lengths divided so that 1024
remain.
"""

import copy

VOCABULARY = 2048
PROMPT_IDS = range(10, 2000)
LONGEST = 1024  # positions
WINDOW_MAX = 100  # of windows shorter than the context, so that a prompt of 200 ids is longer
ID_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_index", "boi_token_index", "eoi_token_index")


def shrink(published):
    keys = copy.deepcopy(published)
    text = keys.get("text_config", keys)
    shrink_ids(keys)
    if text is not keys:
        shrink_ids(text)
        keys["vision_config"].update(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                                     head_dim=16, image_size=28, patch_size=14)
        if "mm_tokens_per_image" in keys:
            keys["mm_tokens_per_image"] = 4
    text["vocab_size"] = VOCABULARY
    if text["model_type"] == "gpt2":
        heads = 4 if text["n_head"] % 4 == 0 else 5
        text.update(n_head=heads, n_embd=16 * heads, n_layer=3, n_positions=LONGEST, n_ctx=LONGEST)
        if text.get("n_inner"):
            text["n_inner"] = 200
    else:
        text["intermediate_size"] = 96
        shrink_layers(text)
        head_dim = shrink_heads(text)
        shrink_lengths(text, head_dim)
    return keys


def shrink_ids(keys):
    """Ids past the vocabulary become others, that no prompt has."""
    for place, key in enumerate(ID_KEYS):
        ids = keys.get(key)
        if isinstance(ids, list):
            keys[key] = [id if id < VOCABULARY else PROMPT_IDS.stop + 8 * place + at for at, id in enumerate(ids)]
        elif ids is not None and ids >= VOCABULARY:
            keys[key] = PROMPT_IDS.stop + 8 * place


def shrink_layers(text):
    """Four layers; seven of Gemma 3, whose sixth layer is the first without a window."""
    published = text["num_hidden_layers"]
    count = text["num_hidden_layers"] = 7 if text["model_type"].startswith("gemma3") else 4
    for key in ("layer_types", "no_rope_layers"):
        if key in text:
            text[key] = text[key][:count]
    if text["model_type"] == "qwen2" and "layer_types" in text:
        text["layer_types"][-1] = "sliding_attention"  # as the last of the published layers
    if "max_window_layers" in text:
        text["max_window_layers"] = min(count, text["max_window_layers"] * count // published)


def shrink_heads(text):
    """At most 16 heads, as many for a KV head as published. Gives the elements of a head."""
    is_gemma = text["model_type"].startswith("gemma")
    if "num_attention_heads" not in text:
        text["hidden_size"] = 128
        return 256  # Gemma 3: the class's default
    heads, kv_heads = text["num_attention_heads"], text.get("num_key_value_heads")
    published = text.get("head_dim") or text["hidden_size"] // heads
    if "head_dim" in text:
        text["head_dim"] = 16 if published * heads == text["hidden_size"] else 24
    if heads > 8 and kv_heads:
        text["num_key_value_heads"] = min(kv_heads, 2)
        text["num_attention_heads"] = text["num_key_value_heads"] * min(heads // kv_heads, 8)
    elif heads > 8:
        text["num_attention_heads"] = 16 if text["model_type"] == "mistral" else 4  # Mistral's class has 8 KV heads
    text["hidden_size"] = 16 * text["num_attention_heads"]
    head_dim = text.get("head_dim") or (256 if is_gemma else 16)
    if "query_pre_attn_scalar" in text:
        text["query_pre_attn_scalar"] = head_dim if text["query_pre_attn_scalar"] == published else 20
    if "attention_multiplier" in text:
        text["attention_multiplier"] *= 4  # about 1 / sqrt(head_dim) again
    return head_dim


def shrink_lengths(text, head_dim):
    longest = text.get("max_position_embeddings", 32 * LONGEST)
    divisor = max(1.0, longest / LONGEST)
    window = text.get("sliding_window")
    if window:
        text["sliding_window"] = min(int(window / divisor), WINDOW_MAX) if window < longest else int(window / divisor)
    for key in ("max_position_embeddings", "original_max_position_embeddings"):
        if text.get(key):
            text[key] = int(text[key] / divisor)
    for rope in (text.get("rope_scaling"), text.get("rope_parameters")):
        if rope and rope.get("original_max_position_embeddings"):
            rope["original_max_position_embeddings"] = int(rope["original_max_position_embeddings"] / divisor)
        for key in ("long_factor", "short_factor"):
            if rope and key in rope:
                rope[key] = rope[key][:int(head_dim * text.get("partial_rotary_factor", 1.0)) // 2]
