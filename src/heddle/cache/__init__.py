"""KV pages, their owners, and the prefixes in them. Only integers: no arrays, no text.

The executor owns the memory.
"""
