"""Servers with a fake model for the tests of this room."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from fake_server import Running, run_server
from heddle.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def shared() -> Iterator[Running]:
    """One server for tests that leave it as they found it."""
    with run_server(ServerConfig(port=0), slots=4, queue=16) as running:
        yield running


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Starts servers of a test's own, with settings of server and engine."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Running:
            """Settings of the server and of its engine, by their names."""
            names = {field.name for field in fields(ServerConfig)}
            of_server = {name: settings.pop(name) for name in names & settings.keys()}
            config = ServerConfig(**{"port": 0, "max_body": 1 << 20} | of_server)
            return stack.enter_context(run_server(config, **settings))

        yield start
