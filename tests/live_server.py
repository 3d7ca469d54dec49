"""A server of an engine on a real socket, in a thread of the test's process.

With HEDDLE_TEST_URL, tests on the default model use the server or deployment at that URL instead.
It needs the settings of those tests, as far as one server can have them:

    heddle deploy --api-key sk-right --api-key none --api-key unused --kv-cache 256M

Tests of LangChain with Ollama send no key. Those of full servers and of context lengths need the
settings of their own fixtures.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    if ELSEWHERE and not isinstance(models, Registry) and models.model.info.id == DEFAULT_MODEL:
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
