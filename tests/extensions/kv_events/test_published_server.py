"""A server publishes the blocks of its models if its settings name an address."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("zmq")

from configs import server_config
from extensions.kv_events.scorer import Scorer
from heddle.errors import ConfigError
from heddle.extensions.kv_events import publisher as publishing
from heddle.extensions.kv_events.publisher import Publisher
from heddle.hosting.registry import Registry
from heddle.server.app import create_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running
    from heddle.engine import Engine

LOCAL = "tcp://127.0.0.1:*"
BODY = {"prompt": "a" * 70, "max_tokens": 2, "ignore_eos": True}


@pytest.mark.parametrize(("name", "shown"), [("", socket.gethostname()), ("10.0.0.7:80",) * 2])
def test_a_server_publishes_under_its_name(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, name: str, shown: str
) -> None:
    made: list[Publisher] = []

    class Noted(Publisher):
        def __init__(self, *settings: str) -> None:
            super().__init__(*settings)
            made.append(self)

    monkeypatch.setattr(publishing, "Publisher", Noted)
    server = serve(kv_events=LOCAL, kv_events_replay=LOCAL, kv_events_id=name)
    [publisher] = made
    model = server.engine.model.info.id
    scorer = Scorer(publisher, topic=f"kv@{shown}@{model}")
    assert server.post("/v1/completions", BODY).status_code == 200
    scorer.until(lambda: len(scorer.blocks) == 2)
    assert {name for name, _ in scorer.blocks} == {model}
    scorer.close()
    publisher.close()
    publisher.close()


def test_an_address_that_cannot_be_used_ends_the_start(engine: Engine) -> None:
    config = server_config(kv_events="nonsense")
    with pytest.raises(ConfigError, match="kv_events: ZeroMQ cannot use the address 'nonsense'"):
        create_app(Registry.of(engine), config)


def test_zeromq_is_not_imported_without_an_address(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    assert serve().get("/health").status_code == 200
