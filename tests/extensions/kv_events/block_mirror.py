"""What an observer knows of a cache's blocks, and what the prefix tree has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.kv_events.blocks import Blocks, block_hashes
from heddle.state import FIRST_KEY, PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.cache.radix import RadixTree, Salt


class Mirror:
    """Rebuilds the set of blocks from what it hears. An `AssertionError` names what cannot be."""

    def __init__(self) -> None:
        self.prefixes: dict[int, tuple[Salt, tuple[int, ...]]] = {}

    def stored(self, blocks: Blocks) -> None:
        assert len(blocks.tokens) == PAGE_TOKENS * len(blocks.hashes) > 0
        prefix: tuple[int, ...] = ()
        salt = blocks.salt
        if blocks.parent is not None:
            assert blocks.salt is None
            salt, prefix = self.prefixes[blocks.parent]  # it was stored before
        for index, one in enumerate(blocks.hashes):
            assert one not in self.prefixes, "a block was stored twice"
            prefix += tuple(blocks.tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS])
            self.prefixes[one] = salt, prefix

    def removed(self, hashes: Sequence[int]) -> None:
        for one in hashes:
            del self.prefixes[one]

    def cleared(self) -> None:
        self.prefixes.clear()


def blocks_of(tree: RadixTree) -> dict[int, tuple[Salt, tuple[int, ...]]]:
    """Every block of a tree: salt and prefix, by the hash that all of its tokens give.

    Pictures and what follows them have none.
    """
    found = {}
    for node in tree.walk():
        salt, tokens = tree.path(node)
        hashes = block_hashes(salt, tokens)
        for number in range(node.start // PAGE_TOKENS, node.end // PAGE_TOKENS):
            prefix = tuple(tokens[: (number + 1) * PAGE_TOKENS])
            if max(prefix) < FIRST_KEY:
                found[hashes[number]] = salt, prefix
    return found
