#!/usr/bin/env python3
"""Holds the traces of a service against OpenTelemetry's own classes, and a collector if one is named. By otlp.sh.

    otlp.py PINION [ROTEL]

An export comes here first. It is read, then passed on to the collector, whose answer goes back; the collector sends
what it made of it to a second place here.
"""
import atexit
import base64
import collections
import gzip
import http.client
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest, ExportTraceServiceResponse)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

MODEL = pathlib.Path(__file__).resolve().parents[2] / "deploy/demo-model"
READY = "pinion is ready: "
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STATE = "vendor=1,other=2"
STAGES = ["admission", "tokenizer_queue", "tokenize", "engine_inbox", "queue", "prefill", "decode", "detokenize",
          "write"]
IDS = {"traceId": 32, "spanId": 16, "parentSpanId": 16}
PATIENCE_S = 20
# A stream is still under way when its client leaves.
STEP_US = 5000


def expect(holds, what):
    if not holds:
        raise SystemExit(f"otlp: {what}")


def spans_of(body):
    scopes = [scope for resource in body["resourceSpans"] for scope in resource["scopeSpans"]]
    return [span for scope in scopes for span in scope["spans"]]


def read(text):
    """The message of an export in JSON. OTLP writes ids in hexadecimal digits where protobuf's JSON has base64."""
    sent = json.loads(text)
    plain = json.loads(text)
    for span in spans_of(plain):
        for name, digits in IDS.items():
            if name in span:
                expect(re.fullmatch(f"[0-9a-f]{{{digits}}}", span[name]), f"{name} is {span[name]}")
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    message = json_format.ParseDict(plain, ExportTraceServiceRequest(), ignore_unknown_fields=False)
    again = json_format.MessageToDict(message, use_integers_for_enums=True)
    for span in spans_of(again):
        for name in IDS:
            if name in span:
                span[name] = base64.b64decode(span[name]).hex()
    expect(again == sent, f"the JSON is not what its message has as JSON:\n{json.dumps(sent)}\n{json.dumps(again)}")
    return message


class Place:
    """Takes exports at a port of its own. `take` gives (status, headers, body) for the headers and the body of one."""

    def __init__(self, take):
        place = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                try:
                    expect(self.path == "/v1/traces", f"{self.path} is not where traces go")
                    status, kind, answer = take(self.headers, body)
                # Whatever is wrong belongs to the check and not to this thread.
                except BaseException as error:
                    place.wrong.append(error)
                    status, kind, answer = 400, "text/plain", b""
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.wrong, self.messages = [], []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        for error in self.wrong:
            raise error
        scopes = [scope for resource in self.all_resources() for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    def all_resources(self):
        return [resource for message in self.messages for resource in message.resource_spans]

    def resources(self):
        return {json_format.MessageToJson(each.resource, sort_keys=True) for each in self.all_resources()}


def free_port():
    with http.server.socketserver.TCPServer(("127.0.0.1", 0), None) as server:
        return server.server_address[1]


class Collector:
    """Rotel between two places."""

    def __init__(self, program, after, folder):
        self.port = free_port()
        own = {"ROTEL_PID_FILE": f"{folder}/pid", "PATH": os.environ["PATH"]}
        self.log = open(f"{folder}/rotel.log", "w+")
        self.process = subprocess.Popen(
            [program, "start", "--otlp-http-endpoint", f"127.0.0.1:{self.port}",
             "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}", "--exporter", "otlp",
             "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", f"http://127.0.0.1:{after}"],
            stdout=self.log, stderr=self.log, env=own, cwd=folder)
        atexit.register(self.process.kill)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                http.client.HTTPConnection("127.0.0.1", self.port, timeout=5).connect()
                return
            except OSError:
                expect(self.process.poll() is None and time.monotonic() < end, f"rotel does not start: {self.said()}")
                time.sleep(0.05)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def take(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", "/v1/traces", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()

    def end(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)


class Service:
    def __init__(self, program, collector):
        ours = ("OTEL_", "PINION_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment["OTEL_RESOURCE_ATTRIBUTES"] = "deployment.environment.name=a%20check"
        self.process = subprocess.Popen(
            [program, "serve", str(MODEL), "--backend", "fake", "--fake-step-us", str(STEP_US), "--port", "0",
             "--no-pin", "--no-spare-engine", "--log", "warn", "--served-model-name", "checked",
             "--otlp-traces-endpoint", f"http://127.0.0.1:{collector}"],
            stderr=subprocess.PIPE, text=True, env=environment)
        # Its roles end with it, and what is over is left alone.
        atexit.register(self.process.kill)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith(READY):
                break
        else:
            raise SystemExit("".join(said))
        self.address = line.removeprefix(READY).split()[0].removeprefix("http://")
        # An unread pipe would stop it.
        threading.Thread(target=lambda: collections.deque(self.process.stderr, maxlen=0), daemon=True).start()

    def ask(self, label, fields, parent):
        """An answer of which nothing is read yet, and its connection."""
        headers = {"content-type": "application/json", "x-request-id": label}
        if parent:
            headers |= {"traceparent": parent, "tracestate": STATE}
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        connection.request("POST", "/v1/completions", json.dumps(fields), headers)
        return connection.getresponse(), connection

    def end(self):
        """The last spans leave before the process does."""
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(PATIENCE_S) == 0, f"the service ended with {self.process.returncode}")


def send(service):
    """Requests of every kind, by their labels."""
    short = {"prompt": "words", "max_tokens": 5}
    sampled, unsampled = (f"00-{TRACE}-{CALLER}-{flags}" for flags in ("01", "00"))
    asked = [("whole", short, sampled, 200), ("stream", {**short, "stream": True}, sampled, 200),
             ("own", short, None, 200), ("unsampled", short, unsampled, 200),
             ("choices", {**short, "prompt": ["one", "two"], "n": 2, "temperature": 1}, sampled, 200),
             ("refused", {**short, "temperature": -1}, sampled, 400)]
    for label, fields, parent, status in asked:
        answer, _ = service.ask(label, fields, parent)
        answer.read()
        expect(answer.status == status, f"{label}: status {answer.status}")
    answer, connection = service.ask("left", {**short, "max_tokens": 200, "stream": True}, sampled)
    answer.read1(1)
    answer.close()
    connection.close()


def value(span, key):
    found = [attribute.value for attribute in span.attributes if attribute.key == key]
    expect(len(found) <= 1, f"{key} is there twice: {span}")
    return getattr(found[0], found[0].WhichOneof("value")) if found else None


def check_stages(root, stages, label):
    for sequence in {value(stage, "pinion.sequence") for stage in stages}:
        own = [stage for stage in stages if value(stage, "pinion.sequence") == sequence]
        own.sort(key=lambda stage: (stage.start_time_unix_nano, stage.end_time_unix_nano))
        at = root.start_time_unix_nano
        for stage in own:
            same = (stage.trace_id, stage.trace_state) == (root.trace_id, root.trace_state)
            expect(same and (stage.kind, stage.flags) == (Span.SPAN_KIND_INTERNAL, 0x101), f"{label}: {stage}")
            expect(stage.start_time_unix_nano == at <= stage.end_time_unix_nano, f"{label}: a gap before {stage}")
            at = stage.end_time_unix_nano
        expect(at <= root.end_time_unix_nano, f"{label}: a stage ends after its request")
        if label != "left":
            expect([stage.name for stage in own] == STAGES, f"{label}: {[stage.name for stage in own]}")


def check_spans(spans):
    """Gives the number of requests."""
    expect(len({span.span_id for span in spans}) == len(spans), "an id of a span is there twice")
    roots = {value(span, "gen_ai.request.id"): span for span in spans if span.kind == Span.SPAN_KIND_SERVER}
    texts = {"whole": 1, "stream": 1, "own": 1, "choices": 4, "refused": 0, "left": 1}
    expect(set(roots) == set(texts), f"requests with a span: {sorted(roots)}")
    known = {root.span_id for root in roots.values()}
    for label, root in roots.items():
        stages = [span for span in spans if span.parent_span_id == root.span_id]
        sequences = {value(stage, "pinion.sequence") for stage in stages}
        expect(len(sequences) == texts[label], f"{label}: texts {sequences}")
        check_stages(root, stages, label)
        if label == "own":
            joined = root.parent_span_id or root.trace_id.hex() == TRACE
            expect(not joined and root.flags == 0x101, f"{label}: {root}")
        else:
            joined = (root.trace_id.hex(), root.parent_span_id.hex(), root.trace_state, root.flags)
            expect(joined == (TRACE, CALLER, STATE, 0x301), f"{label}: {root}")
        failed = root.status.code == Status.STATUS_CODE_ERROR
        expect(failed == (label == "left"), f"{label}: {root}")
        expect(root.start_time_unix_nano < root.end_time_unix_nano, f"{label}: {root}")
        names = (root.name, value(root, "gen_ai.request.model"))
        expect(names == ("text_completion checked", "checked"), f"{label}: {root}")
        if label not in ("refused", "left"):
            expect(value(root, "gen_ai.usage.output_tokens") == 5 * texts[label], f"{label}: {root}")
    stages = [span for span in spans if span.kind != Span.SPAN_KIND_SERVER]
    expect(all(stage.parent_span_id in known for stage in stages), "a stage without a request")
    return len(roots)


def received(headers, body, place):
    """A protobuf of the collector."""
    expect(headers["content-type"] == "application/x-protobuf", headers["content-type"])
    body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
    place.messages.append(ExportTraceServiceRequest.FromString(body))
    return 200, "application/x-protobuf", ExportTraceServiceResponse().SerializeToString()


def sorted_bytes(spans):
    return sorted(span.SerializeToString(deterministic=True) for span in spans)


def main(pinion, rotel=None):
    after = Place(lambda headers, body: received(headers, body, after))
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(rotel, after.port, folder) if rotel else None

        def take(headers, body):
            expect(headers["content-type"] == "application/json", headers["content-type"])
            here.messages.append(read(body))
            return collector.take(body) if collector else (200, "application/json", b"{}")

        here = Place(take)
        service = Service(pinion, here.port)
        send(service)
        service.end()
        spans = here.spans()
        if collector:
            end = time.monotonic() + PATIENCE_S
            while len(after.spans()) < len(spans) and time.monotonic() < end:
                time.sleep(0.1)
            collector.end()
            expect(sorted_bytes(after.spans()) == sorted_bytes(spans), f"rotel sends on other spans: {after.spans()}")
            expect(after.resources() == here.resources(), f"rotel sends on another resource: {after.resources()}")
    resource = json.loads(*here.resources())["attributes"]
    found = {one["key"]: one["value"]["stringValue"] for one in resource}
    expect(found == {"service.name": "pinion", "deployment.environment.name": "a check"}, f"resource: {found}")
    requests = check_spans(spans)
    readers = "opentelemetry-proto and rotel" if collector else "opentelemetry-proto (without rotel)"
    print(f"otlp: {len(spans)} spans of {requests} requests, read by {readers}: no complaint")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
