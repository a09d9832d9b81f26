"""What the cache of a replica holds, told to Dynamo.

Dynamo can subscribe to KV events itself, but its index takes for granted that a block has the same name in all workers; with names that
differ it drops blocks whose beginning another worker told first. Pinion's names are numbers of one replica. Here a block is named by a
hash of its token ids and of the name before it.
"""
import hashlib
import os
import struct
import threading
import traceback

import msgspec
import zmq

# How often the thread looks whether it is to end.
LOOK_MS = 200


def name_of(before, token_ids):
    packed = struct.pack(f"<q{len(token_ids)}I", before or 0, *token_ids)
    # Dynamo's names are signed; 0 is none here.
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "big") >> 1 or 1


class Events:
    """Follows the events of a replica in a thread, until it is told to end."""

    def __init__(self, endpoint):
        self.endpoint, self.names, self.done, self.thread = endpoint, {}, False, None

    def follow(self, publisher):
        self.publisher = publisher
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            with zmq.Context() as context, context.socket(zmq.SUB) as socket:
                socket.linger, socket.rcvtimeo = 0, LOOK_MS
                socket.subscribe(b"")
                socket.connect(self.endpoint)
                while not self.done:
                    try:
                        self.tell(socket.recv_multipart())
                    except zmq.Again:
                        continue
        except Exception:
            # Dynamo would go on with what it was told last.
            traceback.print_exc()
            os._exit(1)

    def tell(self, message):
        _topic, _number, payload = message
        _time, events, _rank = msgspec.msgpack.decode(payload)
        for kind, *fields in events:
            if kind == "BlockStored":
                self.stored(*fields[:4])
            elif kind == "BlockRemoved":
                self.publisher.publish_removed([self.names.pop(own) for own in fields[0]])
            elif self.names:
                self.publisher.publish_removed(list(self.names.values()))
                self.names.clear()

    def stored(self, own_names, parent, token_ids, block_size):
        before = parent_name = None if parent is None else self.names[parent]
        names = []
        for number, own in enumerate(own_names):
            before = self.names[own] = name_of(before, token_ids[number * block_size:(number + 1) * block_size])
            names.append(before)
        self.publisher.publish_stored(token_ids, [block_size] * len(names), names, parent_name)

    def end(self):
        self.done = True
        if self.thread:
            self.thread.join(timeout=5)
