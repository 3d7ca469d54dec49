"""Checks of the settings, of the address of the server, and of the way to the hub."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.cli.options import Sources
from heddle.cli.settings_file import find
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import HeddleError
from heddle.extensions.doctor.findings import Finding, State
from heddle.hub_place import hub_place
from heddle.server.http.keys import keys_of
from heddle.server.http.listener import bind, is_loopback
from heddle.server.http.tls import tls_of
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK_SECONDS = 5.0
"""Most seconds that the hub may take to answer."""


@dataclass(slots=True)
class Settings:
    """The settings of a server, or the defaults where they are wrong."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def read(self, named: str | None) -> Iterator[Finding]:
        """Read the file and the variables, and check what they say."""
        try:
            path = find(named)
            sources = Sources({}, named).read_again()
            engine = sources.resolve(EngineConfig())
            server = sources.resolve(ServerConfig())
            sources.resolve(RegistryConfig())
            engine.check()
            for model in sources.file.models:
                sources.resolve(EngineConfig(), model).check()
        except HeddleError as error:
            yield Finding("settings", error.message, State.FAIL, "heddle config shows the rest")
            return
        self.engine, self.server = engine, server
        if sources.file.shows_secrets:
            said = f"other users can read the keys in {path}"
            yield Finding("settings", said, State.WARN, f"chmod 600 {path}")
        else:
            yield Finding("settings", f"{path} is right" if path else "no file, and no errors")


def address(server: ServerConfig) -> Iterator[Finding]:
    """Whether a server could listen, and who could use it."""
    try:
        bind(server).close()
        tls_of(server)
        keys = keys_of(server)
    except HeddleError as error:
        said, _, advice = error.message.partition("; ")
        yield Finding("address", said, State.FAIL, advice)
        return
    said = f"{server.host} port {server.port} is free; {counted(keys.count, 'key')}"
    if keys.admits_all and not is_loopback(server.host):
        advice = "everyone who reaches it may use the server; set api_key_file, or host 127.0.0.1"
        yield Finding("address", said, State.WARN, advice)
    else:
        yield Finding("address", said)


def network(engine: EngineConfig, seconds: float = NETWORK_SECONDS) -> Iterator[Finding]:
    """Whether the hub answers. A setting of it may take as long as a look-up of names."""
    place = hub_place(engine)
    if place.offline:
        yield Finding("network", "not tried: the settings say offline")
        return
    answers: list[str] = []
    asking = threading.Thread(target=_ask, args=(place.endpoint, seconds, answers), daemon=True)
    asking.start()
    asking.join(seconds)
    said = answers[0] if answers else f"no answer within {seconds:g} s"
    if said:
        advice = "models in the caches work; for others see the proxy (HTTPS_PROXY) or HF_ENDPOINT"
        yield Finding("network", f"{place.endpoint}: {said}", State.WARN, advice)
    else:
        yield Finding("network", f"{place.endpoint} answers")


def _ask(endpoint: str, seconds: float, answers: list[str]) -> None:
    """Add why the hub does not answer; an empty text if it does."""
    import httpx2

    try:
        status = httpx2.head(f"{endpoint}/api/models?limit=1", timeout=seconds).status_code
        answers.append(f"status {status}" if status >= 500 else "")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        answers.append(f"{type(error).__name__}: {error}")
