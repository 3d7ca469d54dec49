"""Spans of OpenTelemetry: one for each request that computes, with a child for each of its phases.

Names of attributes are OpenTelemetry's semantic conventions for generative AI
(https://github.com/open-telemetry/semantic-conventions-genai). The conventions have no times of
phases and no id of a request, so `gen_ai.latency.*` and `gen_ai.request.id` are vLLM's names. Spans
hold no prompts and no outputs.

The SDK is imported only if a collector is set. Spans are made after the answer, in the event loop;
that took 0.5 ms a request on two busy cores. A thread of the SDK sends them.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from heddle.errors import ConfigError
from heddle.extensions.otel.settings import OtelSettings
from heddle.sampling_params import SamplingParams
from heddle.server.http.record import GONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import TracerProvider

    from heddle.config import ServerConfig
    from heddle.server.http.record import RequestRecord

_log = logging.getLogger(__name__)

_OPERATIONS = {
    "/chat/completions": "chat",
    "/responses": "chat",
    "/messages": "chat",
    "/completions": "text_completion",
    "/infill": "text_completion",
    "/embeddings": "embeddings",
    "/rerank": "rerank",
}
"""Names of operations by how a path ends; the first match counts."""

_TRACES = "/v1/traces"
_NEEDS = "install OpenTelemetry: pip install 'heddle[otel]'"


def tracing_of(config: ServerConfig) -> Tracing | None:
    """The tracing that the settings or OpenTelemetry's own variables ask for; None: none.

    Raises:
        ConfigError: see :func:`start_tracing`.
    """
    endpoint = config.of(OtelSettings).otel_endpoint or collector_of(os.environ)
    return start_tracing(endpoint) if endpoint else None


def collector_of(environ: Mapping[str, str]) -> str:
    """The URL of the collector in OpenTelemetry's own variable; empty without one.

    If OpenTelemetry is not installed, this logs a warning and returns an empty text: the variable
    is often set for all programs of a machine.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    url = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if url and not _is_installed():
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT has no effect; to send spans, %s", _NEEDS)
        return ""
    return url


def start_tracing(endpoint: str, service: str = "heddle") -> Tracing:
    """Start to send spans to a collector.

    Args:
        endpoint: URL of the collector, for OTLP over HTTP with protobuf. `/v1/traces` is added
            unless the URL ends with it. Headers, sampling and further attributes come from
            OpenTelemetry's variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, ...).
        service: name of the service in the spans, unless OTEL_SERVICE_NAME names it.

    Raises:
        ConfigError: the endpoint is no URL, or OpenTelemetry is not installed.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"otel_endpoint must be a URL such as http://127.0.0.1:4318, got {endpoint!r}",
            param="otel_endpoint",
        )
    if not _is_installed():
        raise ConfigError(f"otel_endpoint needs an extra; {_NEEDS}", param="otel_endpoint")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": service}))
    provider = TracerProvider(resource=resource)  # at exit, it sends what is left
    url = endpoint if endpoint.endswith(_TRACES) else endpoint.rstrip("/") + _TRACES
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return Tracing(provider)


class Tracing:
    """Makes the spans of requests. A reader of records, for the server's edge."""

    def __init__(self, provider: TracerProvider) -> None:
        """`provider` decides where spans go."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("heddle")
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, record: RequestRecord) -> None:
        """Make the spans of a request that has ended."""
        from opentelemetry import trace

        operation = operation_of(record)
        if operation is None:
            return
        headers = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        parent = self._propagator.extract({name: text for name, text in headers.items() if text})
        span = self._tracer.start_span(
            operation if record.model is None else f"{operation} {record.model}",
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes=attributes_of(record, operation),
            start_time=record.started_ns,
        )
        if record.error is not None and record.error != GONE and not 400 <= record.status < 500:
            span.set_status(trace.Status(trace.StatusCode.ERROR, record.error))
        inside = trace.set_span_in_context(span)
        at = record.submitted
        for phase, seconds in record.phases.items():
            if seconds > 0.0:
                child = self._tracer.start_span(phase, inside, start_time=_ns(record, at))
                child.end(_ns(record, at + seconds))
                at += seconds
        span.end(_ns(record, record.started + record.seconds))

    def close(self) -> None:
        """Send what is left, and end. The SDK does so at exit, too."""
        self._provider.shutdown()


def operation_of(record: RequestRecord) -> str | None:
    """The conventions' name of what a request does; None if it computes nothing."""
    if record.method != "POST":
        return None
    path = record.path.rstrip("/")
    return next((name for end, name in _OPERATIONS.items() if path.endswith(end)), None)


def attributes_of(record: RequestRecord, operation: str) -> dict[str, Any]:
    """The attributes of a request's span. Attributes without a value are left out."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "heddle",
        "gen_ai.request.id": record.request_id,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "http.request.method": record.method,
        "url.path": record.path,
        "http.response.status_code": record.status or None,
        "client.address": record.address or None,
        "user.name": record.key and record.key.name,
        "error.type": record.error_code or (record.error and "_OTHER"),
    }
    if isinstance(record.params, SamplingParams):
        found |= _sampling(record.params)
        found["gen_ai.request.stream"] = record.stream
        found["gen_ai.request.choice.count"] = record.n if record.n > 1 else None
        found["gen_ai.response.finish_reasons"] = [one.value for one in record.finishes] or None
    if record.usages:
        phases = record.phases
        first = phases["queue"] + phases["prefill"]
        found |= {
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "gen_ai.latency.time_in_queue": phases["queue"],
            "gen_ai.latency.time_in_model_prefill": phases["prefill"],
            "gen_ai.latency.time_in_model_decode": phases["decode"],
            "gen_ai.latency.time_to_first_token": first,
            "gen_ai.response.time_to_first_chunk": first if record.stream else None,
            "gen_ai.latency.e2e": record.seconds,
        }
    return {name: value for name, value in found.items() if value is not None}


def _sampling(params: SamplingParams) -> dict[str, Any]:
    return {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.seed": _int64(params.seed),
        "gen_ai.request.stop_sequences": list(params.stop) or None,
    }


def _int64(seed: int | None) -> int | str | None:
    """A seed as an attribute. Attributes are signed and have 64 bits, seeds are not signed."""
    return seed if seed is None or seed < 2**63 else str(seed)


def _ns(record: RequestRecord, at: float) -> int:
    """A time by `time.perf_counter`, in ns since 1970."""
    return record.started_ns + round((at - record.started) * 1e9)


def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None and (
            find_spec("opentelemetry.sdk") is not None
        )
    except ModuleNotFoundError:  # a parent package is missing
        return False
