"""Architectures: `families.py` lists them. Each is one small file over shared blocks."""
