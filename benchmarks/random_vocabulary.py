"""The vocabulary of random models: byte-level tokens that any tokenizer of BPE reads."""

from __future__ import annotations

from itertools import product


def pieces() -> tuple[list[str], list[str]]:
    """A byte-level vocabulary, bytes and pairs of visible bytes, and its merges."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = [chr(byte) for byte in visible[:143]]
    singles = [chr(byte) for byte in visible] + [chr(256 + i) for i in range(len(hidden))]
    pairs = list(product(letters, letters))
    return [*singles, *map("".join, pairs)], list(map(" ".join, pairs))
