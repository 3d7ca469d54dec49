"""Engines on a fake executor."""

from fixtures.engines import engine, executor, start  # noqa: F401
