"""A server of an engine on a real socket, in a thread of the test's process.

With HEDDLE_TEST_URL, tests on the default model use the server or deployment at that URL instead,
and tests that need another server are skipped. It needs the settings of those tests:

    heddle deploy --api-key sk-right --api-key none --api-key unused --kv-cache 256M \\
        --context 1024 --max-body 64K --max-tokens 40
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import DEFAULT_MODEL, ServerConfig
from heddle.hosting.registry import Registry
from heddle.server.app import create_app
from heddle.server.http.listener import bind, url
from heddle.server.http.process import Server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.engine import Engine

ELSEWHERE = os.environ.get("HEDDLE_TEST_URL", "")
KEYS = ("sk-right", "none", "unused")
"""Those that the clients send."""


def needs_own_server(reason: str) -> pytest.MarkDecorator:
    """Marks a test that the server at HEDDLE_TEST_URL does not fit."""
    return pytest.mark.skipif(bool(ELSEWHERE), reason=f"needs a server of its own: {reason}")


@dataclass(frozen=True)
class LiveServer:
    """One that accepts connections."""

    server: Server
    thread: threading.Thread
    address: tuple[str, int]
    url: str


@contextmanager
def live_server(
    models: Engine | Registry, config: ServerConfig | None = None
) -> Iterator[LiveServer]:
    """Serves `models`, on a free port if nothing else is said. The caller closes them."""
    if ELSEWHERE:
        if isinstance(models, Registry) or models.model.info.id != DEFAULT_MODEL:
            pytest.skip("needs a server of its own: other models")
        nothing: Any = None
        yield LiveServer(nothing, nothing, ("", 0), ELSEWHERE)
        return
    config = config or ServerConfig(port=0)
    listener, ready = bind(config), threading.Event()
    registry = models if isinstance(models, Registry) else Registry.of(models)
    server = Server(create_app(registry, config), registry, config, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield LiveServer(server, thread, listener.getsockname(), url(listener, config))
    finally:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive()
