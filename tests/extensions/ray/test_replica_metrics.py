"""Metrics of replicas: as Ray's, and in one exposition."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.exceptions import HTTPException

from heddle.config import ServerConfig
from heddle.errors import UnsupportedRouteError
from heddle.extensions.metrics.settings import MetricsSettings
from heddle.extensions.ray.answering import answer
from heddle.extensions.ray.exchange import Exchange, Piece, joined
from heddle.extensions.ray.exposition import exposition_of, merged
from heddle.extensions.ray.questions import is_question, reply
from heddle.extensions.ray.ray_metrics import RayMetrics
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from patience import PATIENCE
from talking_model import talking_engine

if TYPE_CHECKING:
    from starlette.applications import Starlette

KEY = "k" * 20


class Ray:
    """Keeps what Ray would export, by name and labels."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.made: list[str] = []

    def Gauge(self, name: str, description: str, tag_keys: tuple[str, ...]) -> One:  # noqa: N802
        return self.Counter(name, description, tag_keys)

    def Counter(self, name: str, description: str, tag_keys: tuple[str, ...]) -> One:  # noqa: N802
        assert description
        self.made.append(name)
        return One(self, name, tag_keys)


class One:
    """A metric."""

    def __init__(self, ray: Ray, name: str, labels: tuple[str, ...]) -> None:
        self._ray, self._name, self._labels = ray, name, labels

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert tuple(tags) == self._labels
        self._ray.values[self._name, *tags.values()] = value

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0.0, "Ray refuses 0"
        known = self._ray.values.get((self._name, *tags.values()), 0.0)
        self.set(known + value, tags)


def text(requests: int, depth: float, first: int, all_of: int) -> str:
    return f"""# HELP heddle_requests_total Requests.
# TYPE heddle_requests_total counter
heddle_requests_total{{model="m",reason="stop"}} {requests}
# HELP heddle_requests_created Requests.
# TYPE heddle_requests_created gauge
heddle_requests_created{{model="m",reason="stop"}} 1.7e9
# HELP heddle_queue_depth Waiting.
# TYPE heddle_queue_depth gauge
heddle_queue_depth{{model="m"}} {depth}
# HELP llamacpp:rate Rate.
# TYPE llamacpp:rate gauge
llamacpp:rate NaN
# HELP heddle_wait_seconds Wait.
# TYPE heddle_wait_seconds histogram
heddle_wait_seconds_bucket{{le="1.0",model="m"}} {first}
heddle_wait_seconds_bucket{{le="+Inf",model="m"}} {all_of}
heddle_wait_seconds_sum{{model="m"}} 2.5
heddle_wait_seconds_count{{model="m"}} {all_of}
"""


def test_values_become_those_of_ray() -> None:
    ray = Ray()
    metrics = RayMetrics(ray)
    metrics.export(text(3, 2, 0, 4))
    metrics.export(text(5, 1, 1, 6))
    assert ray.values == {
        ("heddle_requests", "m", "stop"): 5,
        ("heddle_queue_depth", "m"): 1,
        ("heddle_wait_seconds_bucket", "1.0", "m"): 1,
        ("heddle_wait_seconds_bucket", "+Inf", "m"): 6,
        ("heddle_wait_seconds_sum", "m"): 2.5,
        ("heddle_wait_seconds_count", "m"): 6,
    }
    assert len(ray.made) == len({*ray.made})


def test_a_counter_that_begins_anew_has_grown_by_its_value() -> None:
    ray = Ray()
    metrics = RayMetrics(ray)
    for requests in (5, 2, 2, 3):
        metrics.export(text(requests, 0, 0, 0))
    assert ray.values["heddle_requests", "m", "stop"] == 5 + 2 + 1


def test_names_and_labels_that_ray_does_not_take() -> None:
    ray = Ray()
    RayMetrics(ray).export('# TYPE a:b gauge\n# HELP a:b B.\na:b 1\na:b{replica="x"} 2\n')
    assert ray.values == {("a_b",): 1}


def app(**settings: bool | str) -> Starlette:
    with_keys = {"api_key": (KEY,)} if settings.pop("keys", False) else {}
    own = MetricsSettings(**settings)  # type: ignore[arg-type]
    return create_app(Registry(), ServerConfig(**with_keys, extensions=(own,)))  # type: ignore[arg-type]


def test_a_server_tells_its_metrics_without_a_key() -> None:
    assert "heddle_server_tasks" in asyncio.run(exposition_of(app(keys=True)))


def test_a_replica_without_metrics_exports_none() -> None:
    silent = app(metrics_route=False)
    with pytest.raises(UnsupportedRouteError):
        asyncio.run(exposition_of(silent))

    async def run() -> None:  # it ends
        await asyncio.wait_for(RayMetrics(Ray()).export_forever(silent), PATIENCE)

    asyncio.run(run())


def test_a_core_without_the_extension_has_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.extensions.ray.exposition.PATH", "/nowhere")
    with pytest.raises(HTTPException):
        asyncio.run(exposition_of(app()))


def test_export_goes_on_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, seen = Ray(), asyncio.Event()
    metrics = RayMetrics(ray)
    tries: list[str] = []

    def export(exposition: str) -> None:
        tries.append(exposition)
        if len(tries) == 1:
            raise RuntimeError("a label of another package")
        seen.set()

    monkeypatch.setattr(metrics, "export", export)
    monkeypatch.setattr("heddle.extensions.ray.ray_metrics._EVERY", 0.0)

    async def run() -> None:
        exporting = asyncio.create_task(metrics.export_forever(app()))
        await asyncio.wait_for(seen.wait(), PATIENCE)
        exporting.cancel()

    asyncio.run(run())


def question(path: str, *headers: tuple[bytes, bytes], method: str = "GET") -> Exchange:
    return Exchange(method, path, b"", [*headers], b"", "", "req_1", 6, 1_700_000_000)


async def told(by: Starlette, name: str, sent: Exchange) -> Piece:
    return joined([piece async for piece in answer(by, sent, name, PATIENCE)])


def samples(piece: Piece) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(piece.body.decode())
    return {
        (one.name, *one.labels.values()): one.value for family in families for one in family.samples
    }


def test_one_exposition_has_the_metrics_of_all_replicas() -> None:
    exposition = merged({"r1": text(3, 2, 0, 4), "r2": text(9, 7, 1, 1)}).decode()
    found = samples(Piece(body=exposition.encode()))
    assert found["heddle_requests_total", "m", "stop", "r1"] == 3
    assert found["heddle_requests_total", "m", "stop", "r2"] == 9
    assert found["heddle_queue_depth", "m", "r2"] == 7
    assert found["heddle_wait_seconds_bucket", "+Inf", "m", "r1"] == 4
    assert found["heddle_replicas",] == 2
    assert exposition.count("# TYPE heddle_requests_total counter") == 1


def test_the_ingress_tells_the_metrics_of_all_replicas() -> None:
    async def run() -> Piece:
        sent = question("/metrics")
        with talking_engine("{{ messages[0].content }}") as (engine, _):
            one = create_app(Registry.of(engine), ServerConfig())
            pieces = [await told(one, name, sent) for name in ("r1", "r2")]
        return await reply(sent, pieces, app(), starts=False)

    piece = asyncio.run(run())
    assert (piece.status, piece.is_last) == (200, True)
    assert dict(piece.headers)[b"content-length"] == b"%d" % len(piece.body)
    assert {name[-1] for name in samples(piece) if name[0] == "heddle_slots"} == {"r1", "r2"}


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_client_without_a_key_gets_no_metrics(replicas: int) -> None:
    async def run(*headers: tuple[bytes, bytes]) -> Piece:
        sent, own = question("/metrics", *headers), app(keys=True)
        pieces = [await told(own, "r1", sent) for _ in range(replicas)]
        return await reply(sent, pieces, own, starts=True)

    assert asyncio.run(run()).status == 401
    piece = asyncio.run(run((b"authorization", b"Bearer " + KEY.encode())))
    assert piece.status == 200
    assert samples(piece)["heddle_replicas",] == replicas


HEALTHY, ILL = Piece("a", b'{"status":"ok"}', 200), Piece("b", b'{"status":"poisoned"}', 503)


@pytest.mark.parametrize(
    ("pieces", "starts", "status", "text"),
    [
        ([ILL, HEALTHY], False, 200, "ok"),
        ([ILL], True, 503, "poisoned"),
        ([], True, 200, "ok"),
        ([], False, 503, "no replica"),
    ],
)
def test_a_deployment_is_healthy_if_a_replica_can_answer(
    pieces: list[Piece], starts: bool, status: int, text: str
) -> None:
    piece = asyncio.run(reply(question("/health"), pieces, app(), starts=starts))
    assert (piece.status, json.loads(piece.body)["status"]) == (status, text)


def test_what_is_a_question() -> None:
    assert is_question("GET", "/health/ready")
    assert is_question("HEAD", "/health")
    assert is_question("GET", "/metrics")
    assert not is_question("POST", "/metrics")
    assert not is_question("GET", "/v1/models")
