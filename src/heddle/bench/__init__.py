"""Measuring speed: the engine in this process, or servers over HTTP, side by side."""
