"""What a replica publishes for the router, of a model in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.extensions.ray.exchange import Exchange
from heddle.extensions.ray.publishing import Publishing
from heddle.extensions.ray.request_key import read, sender_of
from heddle.extensions.ray.routing.blocks import unpack
from heddle.hosting.registry import Registry
from talking_model import talking_engine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def registry() -> Iterator[Registry]:
    with talking_engine("{{ messages[0].content }}") as (engine, _):
        yield Registry.of(engine)


def test_prompts_that_were_computed_are_published(registry: Registry) -> None:
    publishing = Publishing(registry)
    _, key = read(b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"a" * 200), "")
    publishing.computed(key)
    published = publishing.publish(draining=False)
    assert published["sequence"] == len(unpack(key).hashes) > 2
    assert published["models"] == ["fake"]
    assert not published["draining"]
    assert publishing.publish(draining=True)["draining"]


def test_an_idle_replica_publishes_its_best_rate(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing = Publishing(registry)
    engine = registry.engines["fake"]
    now = engine.snapshot()
    for rate, running, published in ((50.0, 1, 50.0), (2.0, 1, 2.0), (2.0, 0, 50.0)):
        changed = {name: getattr(now, name) for name in now.__dataclass_fields__}
        one = type(now)(**{**changed, "busy_rate": rate, "running": running, "queue_depth": 0})
        monkeypatch.setattr(engine, "snapshot", lambda one=one: one)
        assert publishing.publish(draining=False)["prefill_rate"] == published


def test_a_replica_without_a_step_publishes_some_rate(registry: Registry) -> None:
    assert Publishing(registry).publish(draining=False)["prefill_rate"] > 0.0


def test_bodies_with_the_same_beginning_share_hashes() -> None:
    def hashes(text: str, tenant: str = "", salt: str = "") -> tuple[int, ...]:
        body = f'{{"model": "m", {salt} "messages": [{{"role": "user", "content": "{text}"}}]}}'
        model, key = read(body.encode(), tenant)
        assert model == "m"
        return unpack(key).hashes

    first, second = hashes("a" * 300), hashes("a" * 300 + "b" * 300)
    assert first[:4] == second[:4]
    assert first[:1] != hashes("a" * 300, tenant="other")[:1]
    assert first[:1] != hashes("a" * 300, salt='"cache_salt": "s",')[:1]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"\xff", b'{"model": 7}', b'{"model": "%s"}' % (b"x" * 300)]
)
def test_other_bodies_have_no_key(body: bytes) -> None:
    assert read(body, "") == ("", b"")


def test_clients_are_told_apart_by_key_or_address() -> None:
    def sender(client: str, *headers: tuple[bytes, bytes]) -> str:
        return sender_of(Exchange("GET", "/", b"", list(headers), b"", client, "", 0, 0))

    assert sender("10.0.0.1") == "10.0.0.1"
    one = sender("10.0.0.1", (b"authorization", b"Bearer sk-1"))
    assert one == sender("10.0.0.2", (b"authorization", b"Bearer sk-1")) != "10.0.0.1"
    assert one != sender("10.0.0.1", (b"x-api-key", b"sk-1"))
    assert "sk-1" not in one
