"""KV pages, who owns them, and which prefixes they hold. Integers only: no arrays, no text.

The memory itself belongs to the executor.
"""
