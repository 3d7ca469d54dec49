"""Spans of OpenTelemetry, in the SDK's exporter in memory and on the way to a collector."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from heddle.errors import ConfigError
from heddle.extensions.otel import tracing
from heddle.extensions.otel.tracing import (
    Tracing,
    attributes_of,
    collector_of,
    operation_of,
    start_tracing,
)
from heddle.sampling_params import SamplingParams
from heddle.server.http.record import RequestRecord
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan

    from fake_server import Running

CONVENTIONS = {
    value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")
}
"""Names of the conventions in the version that is installed."""
URL = "http://127.0.0.1:1"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def traced(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> tuple[Running, Callable[[], list[ReadableSpan]]]:
    """A server, and a function that waits for the span of a request and gives all spans so far."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "start_tracing", lambda _: Tracing(provider))
    server = serve(otel_endpoint=URL)

    def spans() -> list[ReadableSpan]:
        server.until(lambda: any(span.kind is SpanKind.SERVER for span in exported()))
        return exported()

    def exported() -> list[ReadableSpan]:
        return list(exporter.get_finished_spans())

    return server, spans


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_and_its_phases(
    traced: tuple[Running, Callable[[], list[ReadableSpan]]], stream: bool
) -> None:
    server, spans = traced
    body: dict[str, Any] = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True, "seed": 7}
    body |= {"stream": stream, "temperature": 0.5, "stop": ["%%"]}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    server.post("/v1/completions", body, headers=headers)
    *phases, span = spans()
    assert (span.name, span.kind) == ("text_completion fake", SpanKind.SERVER)
    assert span.context is not None and span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    found = dict(span.attributes or {})
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "heddle",
        "gen_ai.request.id": "mine",
        "gen_ai.request.model": "fake",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("%%",),
        "gen_ai.request.stream": stream,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.response.status_code": 200,
        "url.path": "/v1/completions",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert ("gen_ai.response.time_to_first_chunk" in found) == stream
    own = {name for name in found if name.startswith("gen_ai.")} - CONVENTIONS  # vLLM's names
    assert {name for name in own if not name.startswith("gen_ai.latency.")} == {"gen_ai.request.id"}
    assert "error.type" not in found
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    times = [(phase.start_time or 0, phase.end_time or 0) for phase in phases]
    assert span.start_time and span.end_time
    assert span.start_time <= times[0][0] < times[0][1] == times[1][0]
    assert times[1][1] == times[2][0] < times[2][1] <= span.end_time + 1e6
    assert {phase.parent.span_id for phase in phases if phase.parent} == {span.context.span_id}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "hello", "temperature": -1}, StatusCode.UNSET),
        ({"prompt": "hello", "ignore_eos": True}, StatusCode.ERROR),
    ],
)
def test_a_request_that_fails(
    traced: tuple[Running, Callable[[], list[ReadableSpan]]],
    body: dict[str, Any],
    status: StatusCode,
) -> None:
    server, spans = traced
    server.executor.poisonous = lambda history: True
    answer = server.post("/v1/completions", body)
    span = spans()[-1]
    assert (span.attributes or {})["error.type"] == answer.json()["error"]["code"]
    assert (span.attributes or {})["http.response.status_code"] == answer.status_code
    assert span.status.status_code is status


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("POST", "/v1/chat/completions", "chat"),
        ("POST", "/chat/completions/", "chat"),
        ("POST", "/v1/messages", "chat"),
        ("POST", "/v1/responses", "chat"),
        ("POST", "/v1/completions", "text_completion"),
        ("POST", "/infill", "text_completion"),
        ("POST", "/v1/embeddings", "embeddings"),
        ("POST", "/v2/rerank", "rerank"),
        ("POST", "/tokenize", None),
        ("POST", "/v1/messages/count_tokens", None),
        ("GET", "/v1/completions", None),
    ],
)
def test_operations(method: str, path: str, operation: str | None) -> None:
    assert operation_of(RequestRecord(method=method, path=path)) == operation


def test_seeds_fit_an_attribute() -> None:
    for seed, expected in ((None, None), (3, 3), (2**63, str(2**63))):
        record = RequestRecord(params=SamplingParams(seed=seed))
        assert attributes_of(record, "chat").get("gen_ai.request.seed") == expected


class Collector(BaseHTTPRequestHandler):
    """Keeps what it gets."""

    received: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.received.append((self.path, self.rfile.read(length)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_spans_reach_a_collector() -> None:
    received: list[tuple[str, bytes]] = []
    handler = type("Handler", (Collector,), {"received": received})
    with HTTPServer(("127.0.0.1", 0), handler) as collector:
        thread = threading.Thread(target=collector.handle_request)
        thread.start()
        tracer = start_tracing(f"http://127.0.0.1:{collector.server_port}/")
        tracer(RequestRecord("mine", "POST", "/v1/completions", model="fake"))
        tracer.close()
        thread.join(PATIENCE)
    [(path, body)] = received
    assert path == "/v1/traces"
    assert b"text_completion fake" in body and b"heddle" in body


def test_a_wrong_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a URL such as"):
        start_tracing("127.0.0.1:4318")


def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert collector_of({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}) == URL
    assert collector_of({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_SDK_DISABLED": "true"}) == ""
    assert collector_of({}) == ""
    assert not caplog.messages
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    assert collector_of({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}) == ""
    assert "pip install 'heddle[otel]'" in caplog.text
    with pytest.raises(ConfigError, match="otel_endpoint needs an extra; install"):
        start_tracing(URL)


def test_the_sdk_is_not_imported_without_a_collector() -> None:
    """FastAPI itself may import OpenTelemetry's interface."""
    code = "import sys, heddle.server.app; assert 'opentelemetry.sdk' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
