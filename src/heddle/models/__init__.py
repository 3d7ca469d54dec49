"""Architectures: `registry.py` lists them. Each is one small file over shared blocks."""
