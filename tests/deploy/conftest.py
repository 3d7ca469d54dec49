"""Servers with a fake model for the tests of this folder."""

from fixtures.servers import serve, shared  # noqa: F401
