"""Engines and servers to measure."""

from fixtures.benches import executor, start  # noqa: F401
