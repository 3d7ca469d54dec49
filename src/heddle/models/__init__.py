"""Architectures: `registry.py` names them, each is one small file over shared blocks."""
