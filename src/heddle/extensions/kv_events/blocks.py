"""Blocks: the full pages of cached prefixes, as scorers outside of the process see them.

A block is PAGE_TOKENS tokens and all tokens before them. Its hash follows from these tokens and the
salt alone, so caches on different machines name the same block by the same number. The tree itself
compares tokens, never hashes.

A picture has a key that means nothing to another process, so it has no blocks, and neither has what
follows it.

Observers hear which blocks the tree gains and loses. Without observers, no hash is computed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from heddle.cache.radix import RadixTree
from heddle.state import FIRST_KEY, PAGE_TOKENS, TokenArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.cache.cache import Cache
    from heddle.cache.radix import Node


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive blocks of one prefix.

    Attributes:
        hashes: hash of each block, in [0, 2**64).
        parent: hash of the block before the first; None if the first block begins the prefix.
        tokens: the tokens of the blocks, PAGE_TOKENS for each.
        salt: the salt of the prefix, if `parent` is None; else None.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: TokenArray[int]
    salt: str | None


class BlockObserver(Protocol):
    """Hears of blocks. The engine thread calls it, mostly under the engine's lock.

    It must not block, raise, or use the cache: let it append to a bounded queue.
    """

    def stored(self, blocks: Blocks) -> None:
        """The tree has these blocks from now on. It stored the parent before."""
        ...

    def removed(self, hashes: Sequence[int]) -> None:
        """The tree has lost these blocks. It lost the blocks that follow them before."""
        ...

    def cleared(self) -> None:
        """The tree has lost all blocks."""
        ...


def observe(cache: Cache, observer: BlockObserver) -> None:
    """Tell `observer` of all blocks in the tree, and of all changes from now on.

    Call it again to hear of all blocks again. The engine thread calls this between steps:
    `engine.thread.call(lambda loop: observe(loop.cache, observer))`.
    """
    tree = cache.prefixes.tree
    if not isinstance(tree.observer, BlockObservers):
        tree.observer = BlockObservers(tree)
    tree.observer.add(observer)


def block_hashes(salt: str | None, tokens: Sequence[int]) -> list[int]:
    """The hashes of all blocks of a prefix. Tokens after the last full page have no block."""
    run = TokenArray("i", tokens)
    return _chain(_root(salt), run[: len(run) - len(run) % PAGE_TOKENS])


class BlockObservers:
    """The observers of one tree, and the hashes of blocks, which nodes keep for them.

    `blocks` of a node has the hashes of the blocks that end in the node. There are hashes only from
    the first observer on.
    """

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._observers: list[BlockObserver] = []

    def add(self, observer: BlockObserver) -> None:
        """Add an observer; see `observe`."""
        if observer not in self._observers:
            self._observers.append(observer)
        for node in self._tree.walk():
            if node.start // PAGE_TOKENS < node.end // PAGE_TOKENS:
                blocks = _blocks(node, 0)
                if blocks.hashes:
                    observer.stored(blocks)

    def grew(self, node: Node) -> None:
        """Hash the blocks that end in the new tokens of `node`, and tell of them."""
        known = len(node.blocks)
        if node.start // PAGE_TOKENS + known < node.end // PAGE_TOKENS:
            blocks = _blocks(node, known)
            for observer in self._observers if blocks.hashes else ():
                observer.stored(blocks)

    def removed(self, node: Node) -> None:
        """Tell of the loss of the blocks that end in `node`."""
        if node.blocks:
            for observer in self._observers:
                observer.removed(node.blocks)

    def cleared(self) -> None:
        """Tell of the loss of all blocks."""
        for observer in self._observers:
            observer.cleared()


def _blocks(node: Node, first: int) -> Blocks:
    """The blocks that end in `node`, from index `first` on. Hashes them unless the node has them.

    Nodes above must have theirs. There are none from the first picture on.
    """
    start = (node.start // PAGE_TOKENS + first) * PAGE_TOKENS
    runs, above = [node.tokens], node
    while above.start > start:  # the first block begins in a node above
        assert above.parent is not None, "a root starts at 0"
        above = above.parent
        runs.append(above.tokens)
    tokens = TokenArray("i")
    for run in reversed(runs):
        tokens.extend(run)
    tokens = tokens[start - above.start : node.end // PAGE_TOKENS * PAGE_TOKENS - above.start]
    salt, parent = None, None
    if start:
        owner = above if above.start < start else above.parent
        assert owner is not None, "the parent block ends in this node or in the node above"
        number = start // PAGE_TOKENS - owner.start // PAGE_TOKENS - 1
        if number >= len(owner.blocks):
            return Blocks((), None, TokenArray("i"), None)  # behind a picture
        parent = owner.blocks[number]
    else:
        salt, _ = RadixTree.path(above)
    if tokens and max(tokens) >= FIRST_KEY:
        until = next(at for at, key in enumerate(tokens) if key >= FIRST_KEY)
        tokens = tokens[: until // PAGE_TOKENS * PAGE_TOKENS]
    if len(node.blocks) == first:
        node.blocks += _chain(_root(salt) if parent is None else parent, tokens)
    return Blocks(tuple(node.blocks[first:]), parent, tokens, salt)


def _root(salt: str | None) -> int:
    """What the hash of the first block of a prefix begins with."""
    text = b"" if salt is None else b"salt" + salt.encode("utf-8", "surrogatepass")
    return _hash(text)


def _chain(seed: int, tokens: TokenArray[int]) -> list[int]:
    """The hash of each block of `tokens`, which follow a block with the hash `seed`."""
    hashes = []
    for at in range(0, len(tokens), PAGE_TOKENS):
        seed = _hash(seed.to_bytes(8, "little") + tokens[at : at + PAGE_TOKENS].tobytes())
        hashes.append(seed)
    return hashes


def _hash(content: bytes) -> int:
    """A number in [0, 2**64) that nobody can aim at: clients choose the tokens."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
