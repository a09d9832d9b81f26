"""Makes names.json beside it with vLLM's own functions (0.32.0): `PYTHONHASHSEED=0 python names.py`, in this folder.

Each entry is a text of whole blocks, and the name of each block. tests/golden.rs computes the same names.
"""

import json
import os
import pathlib

from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils

TEXTS = [
    (4, [1, 24, 50000, 123456, 7, 8, 9, 10]),
    # Each length that a number has in CBOR.
    (2, [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1]),
    (16, list(range(320))),
    (1, [5, 5, 5]),
    # Lengths of an array: in one byte, two, three.
    (23, [1] * 46),
    (24, [1] * 48),
    (255, [1] * 255),
    (256, [1] * 512),
]


def names(block_size, token_ids):
    digest = None
    for begin in range(0, len(token_ids), block_size):
        digest = kv_cache_utils.hash_block_tokens(sha256_cbor, digest, token_ids[begin : begin + block_size])
        yield kv_cache_utils.maybe_convert_block_hash(digest)


if __name__ == "__main__":
    assert os.environ["PYTHONHASHSEED"] == "0"
    kv_cache_utils.init_none_hash(sha256_cbor)
    entries = [
        {"block_size": block_size, "token_ids": token_ids, "names": list(names(block_size, token_ids))}
        for block_size, token_ids in TEXTS
    ]
    text = "[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n"
    (pathlib.Path(__file__).parent / "names.json").write_text(text)
