"""Servers with a fake model for the tests of this room."""

from fixtures.servers import serve, shared  # noqa: F401
