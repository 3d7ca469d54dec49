"""Measuring speed: the engine in this process, or servers over HTTP, side by side."""

from heddle.doors import Extension

EXTENSION = Extension(commands={"bench": "heddle.extensions.bench.commands:benches"})
