"""OpenVINO GenAI's continuous batching behind /v1/completions, as a peer for pinion-bench.

OpenVINO GenAI is a library, and OpenVINO Model Server is not on PyPI. This adapter adds what a client needs and no more:
prompts as token ids, greedy, streamed or whole, one choice. A step keeps Python's lock, so the pipeline has a process of
its own; this one reads requests, makes text and writes answers. `openvino_genai.sh serve` starts it.
"""
import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import pathlib
import queue
import signal
import threading

import tokenizers

BODY_BYTES_MAX = 16 << 20


class Refused(Exception):
    """The request is at fault."""


def engine(args, other, pipe):
    """Drives the pipeline: takes requests in, steps, and hands out what each step made. Ends with the other process."""
    # A copy of the other process's end would keep the pipe open after it.
    other.close()
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = args.cache_gib
    scheduler.max_num_seqs = args.rows
    scheduler.max_num_batched_tokens = args.batched_tokens
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": args.threads}
    if args.precision:
        properties["INFERENCE_PRECISION_HINT"] = args.precision
    if args.kv_precision:
        properties["KV_CACHE_PRECISION"] = args.kv_precision
    pipeline = genai.ContinuousBatchingPipeline(str(args.folder), scheduler, "CPU", properties)
    reasons = {genai.GenerationFinishReason.STOP: "stop", genai.GenerationFinishReason.LENGTH: "length"}
    pipe.send(f"OpenVINO GenAI {genai.__version__}, OpenVINO {ov.__version__}")

    handles = {}
    while True:
        while not handles or pipe.poll():
            number, ids, tokens_max, ignore_eos = pipe.recv()
            if ids is None:
                if number in handles:
                    handles.pop(number).cancel()
                continue
            config = genai.GenerationConfig()
            config.max_new_tokens = tokens_max
            config.ignore_eos = ignore_eos
            config.do_sample = False
            prompt = ov.Tensor(np.array([ids], dtype=np.int64))
            handles[number] = pipeline.add_request(number, prompt, config)
        pipeline.step()
        made = []
        for number, handle in list(handles.items()):
            ids, reason = [], None
            if handle.can_read():
                output = next(iter(handle.read().values()))
                ids, reason = list(output.generated_ids), reasons.get(output.finish_reason)
            elif handle.get_status() != genai.GenerationStatus.RUNNING:
                reason = f"ended as {handle.get_status().name}"
            if reason is not None:
                del handles[number]
            if ids or reason is not None:
                made.append((number, ids, reason))
        if made:
            pipe.send(made)


def fields_of(body):
    if body.get("temperature", 1.0) != 0.0:
        raise Refused("only greedy requests are answered: temperature 0")
    ids = body.get("prompt")
    if not isinstance(ids, list) or not ids or not all(isinstance(token, int) for token in ids):
        raise Refused("prompt must be a list of token ids")
    return ids, int(body.get("max_tokens", 16)), bool(body.get("ignore_eos", False))


class Server:
    def __init__(self, args):
        self.name = args.folder.name
        self.tokenizer = tokenizers.Tokenizer.from_file(str(args.folder / "tokenizer.json"))
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=engine, args=(args, self.pipe, other), daemon=True)
        self.process.start()
        other.close()
        self.version = self.pipe.recv()
        self.numbers = itertools.count()
        self.waiting = {}
        # The engine reads between steps only; the event loop does not wait for that.
        self.requests = queue.SimpleQueue()
        threading.Thread(target=self.send, daemon=True).start()

    def send(self):
        while True:
            self.pipe.send(self.requests.get())

    def receive(self):
        try:
            while self.pipe.poll():
                for number, ids, reason in self.pipe.recv():
                    if number in self.waiting:
                        self.waiting[number].put_nowait((ids, reason))
        except (EOFError, ConnectionError):
            # Without its engine the server answers nothing; the client must see that at once.
            os._exit(1)

    async def connection(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ", 2)
                fields = dict(line.lower().split(":", 1) for line in head[1:] if ":" in line)
                length = int(fields.get("content-length", 0))
                if length > BODY_BYTES_MAX:
                    raise ConnectionError("the body is too large")
                body = await reader.readexactly(length)
                await self.answer(method, path, body, writer)
                await writer.drain()
                if fields.get("connection", "").strip() == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    async def answer(self, method, path, body, writer):
        if (method, path) == ("POST", "/v1/completions"):
            try:
                await self.complete(json.loads(body), writer)
            except (Refused, ValueError) as fault:
                whole(writer, {"error": {"message": str(fault)}}, "400 Bad Request")
        elif (method, path) == ("GET", "/health"):
            whole(writer, {})
        elif (method, path) == ("GET", "/version"):
            whole(writer, {"version": self.version})
        elif (method, path) == ("GET", "/v1/models"):
            whole(writer, {"object": "list", "data": [{"id": self.name, "object": "model"}]})
        else:
            whole(writer, {"error": {"message": f"no {method} {path} here"}}, "404 Not Found")

    async def complete(self, body, writer):
        ids, tokens_max, ignore_eos = fields_of(body)
        number, pieces = next(self.numbers), asyncio.Queue()
        self.waiting[number] = pieces
        self.requests.put((number, ids, tokens_max, ignore_eos))
        streams = bool(body.get("stream"))
        if streams:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        made, reason = [], None
        try:
            while reason is None:
                new, reason = await pieces.get()
                made += new
                if streams and new:
                    event(writer, self.chunk(self.tokenizer.decode(new, skip_special_tokens=False), None))
                    await writer.drain()
        finally:
            del self.waiting[number]
            if reason is None:
                self.requests.put((number, None, 0, False))
        last = self.chunk("" if streams else self.tokenizer.decode(made), reason)
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(made), "total_tokens": len(ids) + len(made)}
        if streams:
            event(writer, last)
            event(writer, {**last, "choices": [], "usage": usage})
            data = b"data: [DONE]\n\n"
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
        else:
            whole(writer, {**last, "usage": usage})

    def chunk(self, text, reason):
        choice = {"index": 0, "text": text, "finish_reason": reason}
        return {"object": "text_completion", "model": self.name, "choices": [choice]}


def event(writer, value):
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def whole(writer, value, status="200 OK"):
    data = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


async def serve(server, port):
    listener = await asyncio.start_server(server.connection, "127.0.0.1", port, backlog=1024)
    asyncio.get_running_loop().add_reader(server.pipe.fileno(), server.receive)
    async with listener:
        await listener.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="what `openvino_genai.sh convert` wrote")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=64, help="most sequences in a step")
    parser.add_argument("--batched-tokens", type=int, default=512, help="most tokens in a step")
    parser.add_argument("--cache-gib", type=int, default=3)
    parser.add_argument("--precision", help="of the computation, like bf16 [default: OpenVINO's choice]")
    parser.add_argument("--kv-precision", help="of keys and values, like bf16 [default: OpenVINO's choice, u8]")
    args = parser.parse_args()

    def end(*_):
        for process in multiprocessing.active_children():
            process.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    asyncio.run(serve(Server(args), args.port))


if __name__ == "__main__":
    main()
