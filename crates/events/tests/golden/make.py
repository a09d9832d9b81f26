"""Makes the golden batches beside it, with msgspec 0.22.0: `python make.py`, in this folder.

The structs have the fields, order and options of vLLM v0.15.0's vllm/distributed/kv_events.py; the tag is the class's
name. tests/golden.rs encodes the same batches and compares the bytes.
"""

import pathlib

import msgspec


class Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(Event):
    block_hashes: list[int | bytes]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def stored(hashes, parent, tokens, size):
    return BlockStored(hashes, parent, tokens, size, None, "GPU", None)


# Names have 64 bits.
HIGH = (1 << 63) + (3 << 40)
BATCHES = {
    "cleared": KVEventBatch(1763884800.25, [AllBlocksCleared()], 0),
    "chain": KVEventBatch(
        1763884801.5,
        [
            BlockRemoved([HIGH + 1, HIGH + 2], "GPU"),
            stored([HIGH + 3, HIGH + 4], None, [0, 127, 128, 255, 256, 65535, 65536, 262143], 4),
            stored([HIGH + 5], HIGH + 3, [7, 8, 9, 10], 4),
        ],
        0,
    ),
    # 20 hashes and 320 ids: array lengths of 16 bits.
    "long": KVEventBatch(
        1763884802.0, [AllBlocksCleared(), stored([HIGH + i for i in range(1, 21)], None, list(range(320)), 16)], 1
    ),
}

if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent
    for name, batch in BATCHES.items():
        payload = msgspec.msgpack.encode(batch)
        assert msgspec.msgpack.decode(payload, type=KVEventBatch) == batch
        (folder / f"{name}.msgpack").write_bytes(payload)
