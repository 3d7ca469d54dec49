"""KV pages, their owners, and the prefixes they hold. Only integers: no arrays, no text.

The executor owns the memory itself.
"""
