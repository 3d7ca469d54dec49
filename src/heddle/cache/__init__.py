"""KV pages and who owns them. Integers only: the memory itself belongs to the executor."""
