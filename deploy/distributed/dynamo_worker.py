"""A replica of Pinion as a worker of NVIDIA Dynamo. On the replica's host, with Dynamo's variables as for its frontend:

    python dynamo_worker.py --url http://127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557 --model /models/NAME

Dynamo's frontend makes token ids of a prompt, chooses a worker by what its replica's cache holds, and makes text of the ids that come
back. It keeps them: when a worker is lost, another one gets the prompt with what was generated, and goes on. Logprobs, several choices
and structured output are refused; Dynamo looks for stop strings itself.
"""
import argparse
import asyncio
import json
import os
import re

import aiohttp
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.publisher import ZmqSource
from dynamo.common.backend.run import run
from dynamo.llm.exceptions import InvalidArgument, StreamIncomplete, WorkerUnavailable

PASSED_ON = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty")
# The first line of an answer has the ids of the prompt.
LINE_BYTES_MAX = 16 << 20
# Pinion is never silent for as long (--keep-alive).
SILENCE_S = 60
# How long streams may go on when the worker is told to leave. Those that are left then move.
DRAIN_S = 20


def refuse_what_is_not_passed_on(request):
    sampling, output = request.get("sampling_options", {}), request.get("output_options", {})
    wanted = {"n": (sampling.get("n") or 1) > 1, "structured output": sampling.get("guided_decoding"),
              "logprobs": output.get("logprobs") is not None, "prompt_logprobs": output.get("prompt_logprobs") is not None}
    if names := [name for name, given in wanted.items() if given]:
        raise InvalidArgument(f"{names[0]} is not supported behind Dynamo")


class Pinion(LLMEngine):
    """One replica, which serves already."""

    def __init__(self, arguments):
        self.arguments, self.session = arguments, None
        # By Dynamo's name of their request.
        self.answers = {}

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--url", required=True, help="of the replica")
        parser.add_argument("--kv-events", required=True, help="what its --kv-events binds, as this host reaches it")
        parser.add_argument("--model", required=True, help="folder with its tokenizer, for Dynamo's frontend")
        parser.add_argument("--endpoint-types", default="completions", help="completions, or chat,completions with a chat template")
        arguments = parser.parse_args(argv)
        return cls(arguments), WorkerConfig(
            namespace=os.environ.get("DYN_NAMESPACE", "dynamo"), model_name=arguments.model, endpoint_types=arguments.endpoint_types,
            discovery_backend=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"), event_plane=os.environ.get("DYN_EVENT_PLANE"))

    async def start(self, worker_id):
        self.session = aiohttp.ClientSession(
            self.arguments.url, connector=aiohttp.TCPConnector(limit=0), read_bufsize=LINE_BYTES_MAX,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_S), raise_for_status=False)
        async with self.session.get("/v1/models") as answer:
            card = (await answer.json())["data"][0]
        async with self.session.get("/metrics/load") as answer:
            cache = dict(re.findall(r'(\w+)="(\d+)"', re.search(r"^vllm:cache_config_info\{.*", await answer.text(), re.M).group()))
        self.context = card["max_model_len"]
        return EngineConfig(self.arguments.model, card["id"], llm=LlmRegistration(
            context_length=self.context, kv_cache_block_size=int(cache["block_size"]), total_kv_blocks=int(cache["num_gpu_blocks"])))

    async def kv_event_sources(self):
        return [ZmqSource(self.arguments.kv_events)]

    def body(self, request):
        """What Pinion is asked for."""
        refuse_what_is_not_passed_on(request)
        sampling, stop = request.get("sampling_options", {}), request.get("stop_conditions", {})
        most = stop.get("max_tokens")
        if most is None:
            most = self.context - len(request["token_ids"])
        body = {name: sampling[name] for name in PASSED_ON if sampling.get(name) is not None}
        # Of a stream that moves Dynamo lowers the most tokens, not the fewest.
        return body | {"prompt": request["token_ids"], "max_tokens": most, "min_tokens": min(stop.get("min_tokens") or 0, most),
                       "ignore_eos": bool(stop.get("ignore_eos")), "stop_token_ids": stop.get("stop_token_ids") or [],
                       "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}

    async def generate(self, request, context):
        body = self.body(request)
        if body["max_tokens"] == 0:
            # Its worker was lost between the last token and the end.
            yield {"token_ids": [], "index": 0, "finish_reason": "length"}
            return
        try:
            async with self.session.post("/v1/completions", json=body) as answer:
                if answer.status != 200:
                    elsewhere = answer.status in (429, 503)
                    raise (WorkerUnavailable if elsewhere else InvalidArgument)(await answer.text())
                self.answers[context.id()] = answer
                async for chunk in chunks(answer.content):
                    yield chunk
        except aiohttp.ClientConnectorError:
            # Nothing listens there. Dynamo sends nothing more to a worker that is gone, and moves what it had.
            os._exit(1)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise StreamIncomplete(f"the replica's answer broke off: {error!r}") from error
        finally:
            self.answers.pop(context.id(), None)

    async def abort(self, context):
        """Its client has left. Pinion sees the connection close, and stops."""
        if answer := self.answers.get(context.id()):
            answer.close()

    async def cleanup(self):
        """Dynamo sends nothing more."""
        end = asyncio.get_running_loop().time() + DRAIN_S
        while self.answers and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.1)
        if self.session:
            await self.session.close()


async def chunks(lines):
    """Of an answer's events what Dynamo wants: new ids, and with the last ones why it ended and the account."""
    last = None
    async for line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: "):])
        if "error" in event:
            raise StreamIncomplete(event["error"]["message"])
        if last:
            yield last | {"completion_usage": event["usage"]}
            return
        choice = event["choices"][0]
        chunk = {"token_ids": choice.get("token_ids") or [], "index": 0}
        if choice["finish_reason"]:
            last = chunk | {"finish_reason": choice["finish_reason"]}
        elif chunk["token_ids"]:
            yield chunk
    raise StreamIncomplete("the replica's answer has no end")


if __name__ == "__main__":
    run(Pinion)
