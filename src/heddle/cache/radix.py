"""The prefix tree: runs of token ids and the pages that hold their keys and values.

Each salt has a tree of nodes. A node covers tokens [start, end) of the path that leads to it, and
names the pages with indices [start // 32, ceil(end / 32)). If the boundary between two nodes is
inside a page, both nodes name a page for that index. Readers use the deeper node's page, because it
holds the tokens of both. The tree compares tokens, never hashes.

::

    root -- "You are a helpful" -+- " assistant. What is" -- " a loom?"      <- a sequence's cursor
                                 +- " poet."                                    locks its path

Only leaves without locks may be evicted. A sequence locks the node where its published tokens end,
its cursor. `locks` of a node counts these sequences, and the children that have locks. So locking a
node only visits ancestors until the first that is already locked.

Nodes do not cross multiples of RUN_TOKENS. So eviction removes a long document from its end, one
run at a time, and a split or merge costs at most one run.

Nodes name windowed pages and snapshots of fixed-size state by tickets. A ticket may become stale at
any time; see :class:`heddle.cache.pages.RevocablePool`. The pools, not the tree, choose the
windowed pages and snapshots to revoke. A node that loses them still has its pages of the group of
all positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, Protocol

from heddle.cache.leaves import LeafQueue
from heddle.cache.pages import NO_TICKET
from heddle.state import PAGE_TOKENS, TokenArray, pages_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from heddle.cache.pages import PagePool, RevocablePool
    from heddle.step import WindowPages

RUN_TOKENS = 4 * PAGE_TOKENS
"""Most tokens of a node. A run ends at a multiple of this number, if not before."""

Salt = str | None
Tickets = tuple[list[int], ...]


class Node:
    """A run of tokens. Only its tree writes to it.

    Attributes:
        parent: the node above; None for a root, and after the node was removed.
        start: position of the first token.
        tokens: the run. Only a root has an empty run.
        pages: ids of its pages; see the module docstring.
        windows: for each windowed group, tickets for the same page numbers as `pages`.
        children: nodes below, by their first token.
        locks: number of sequences whose cursor is this node, and of children with locks.
        last_used: time on the tree's clock when a cursor last left this node or a node below it.
            Never earlier than `last_used` of a child.
        state: ticket for the snapshot of the fixed-size state at `end`; NO_TICKET if there is no
            snapshot.
        blocks: what the tree's observer keeps of the pages that end in the node, a number each.
        hits: how many sequences began at the end of the node.
    """

    __slots__ = (
        "blocks",
        "children",
        "hits",
        "last_used",
        "locks",
        "pages",
        "parent",
        "start",
        "state",
        "tokens",
        "windows",
    )

    def __init__(
        self,
        parent: Node | None,
        start: int,
        tokens: TokenArray[int],
        pages: list[int],
        last_used: int,
        windows: Tickets = (),
    ) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.windows = windows
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.last_used = last_used
        self.state = NO_TICKET
        self.blocks: list[int] = []
        self.hits = 0

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + len(self.tokens)


class Root(Node):
    """The root of the tree of one salt."""

    __slots__ = ("salt",)

    def __init__(self, salt: Salt) -> None:
        super().__init__(None, 0, TokenArray("i"), [], 0)
        self.salt = salt


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix of some tokens that the tree has. Valid until the tree changes.

    Attributes:
        salt: the salt that was searched.
        length: number of tokens of the prefix.
        path: the nodes that hold these tokens, the root first. The last node may hold more tokens.
        lost: further tokens that the tree has, after which a sequence cannot continue.
    """

    salt: Salt
    length: int
    path: tuple[Node, ...]
    lost: int = 0

    @property
    def pages(self) -> list[int]:
        """The pages that hold the tokens. The last page may also hold other tokens."""
        pages: list[int] = []
        for node in self.path:
            del pages[node.start // PAGE_TOKENS :]
            pages += node.pages
        del pages[pages_for(self.length) :]
        return pages

    def tickets(self, group: int, first: int) -> list[int]:
        """Tickets for the windowed group's pages that hold the tokens, from page number `first`
        on."""
        tickets: list[int] = []
        for node in self.path:
            skipped = max(0, first - node.start // PAGE_TOKENS)
            if node.windows and skipped < len(node.windows[group]):
                del tickets[max(0, node.start // PAGE_TOKENS - first) :]
                tickets += node.windows[group][skipped:]
        del tickets[max(0, pages_for(self.length) - first) :]
        return tickets

    def up_to(self, length: int) -> Match:
        """The match of the first `length` tokens."""
        if length == self.length:
            return self
        path = tuple(node for node in self.path if node.start < length or node.parent is None)
        return Match(self.salt, length, path, self.lost + self.length - length)

    def whole_pages(self) -> Match:
        """The part of the match that fills full pages."""
        return self.up_to(self.length - self.length % PAGE_TOKENS)


class TreeObserver(Protocol):
    """Hears what a tree gains and loses, under the engine's lock. It must not change the tree."""

    def grew(self, node: Node) -> None:
        """The node has new tokens at its end, or is new."""
        ...

    def removed(self, node: Node) -> None:
        """The tree loses this leaf."""
        ...

    def cleared(self) -> None:
        """The tree has lost all nodes."""
        ...


class RadixTree:
    """All prefixes of all salts. The tree keeps the pages that its nodes name.

    Args:
        pool: pool of the pages of all positions.
        windows: pool of each windowed group.
        states: pool of the snapshots of fixed-size state; None without.

    Attributes:
        nodes: number of nodes without the roots.
        tokens: number of tokens in all nodes.
        clock: the time that `last_used` records. The owner advances it.
        observer: hears what the tree gains and loses; None: nobody does.
    """

    def __init__(
        self,
        pool: PagePool,
        windows: Sequence[RevocablePool] = (),
        states: RevocablePool | None = None,
    ) -> None:
        self._pool = pool
        self._windows = windows
        self._states = states
        self._roots: dict[Salt, Root] = {}
        self._leaves: LeafQueue[Node] = LeafQueue()
        self.nodes = 0
        self.tokens = 0
        self.clock = 0
        self.observer: TreeObserver | None = None

    # --- finding ---------------------------------------------------------------------------------

    def match(self, salt: Salt, tokens: TokenArray[int]) -> Match:
        """Find the longest prefix of `tokens` in the tree. Changes nothing."""
        node: Node | None = self._roots.get(salt)
        if node is None:
            return Match(salt, 0, ())
        path, length = [node], 0
        while length < len(tokens):
            child = node.children.get(tokens[length])
            if child is None:
                break
            shared = common_prefix(child.tokens, tokens, length)
            path.append(child)
            length += shared
            if shared < len(child.tokens):
                break
            node = child
        return Match(salt, length, tuple(path))

    def enter(self, match: Match) -> Node:
        """Put a cursor where the match ends. This locks the nodes of the match.

        If the match ends inside a node, split the node there, so that its rest stays unlocked.
        """
        node: Node
        if not match.path:
            node = self._roots[match.salt] = Root(match.salt)
        elif match.length < match.path[-1].end:
            node = self._split(match.path[-1], match.length)
        else:
            node = match.path[-1]
        node.hits += 1
        self._lock(node)
        return node

    # --- growing ---------------------------------------------------------------------------------

    def follow(self, node: Node, tokens: TokenArray[int]) -> Node | None:
        """Move a cursor from `node` to the child that begins with the first of `tokens`, if any.

        If the tokens differ from the child inside its run, split the child there. So the returned
        node holds only tokens of `tokens`. Returns None if there is no such child.
        """
        child = node.children.get(tokens[0])
        if child is None:
            return None
        shared = common_prefix(child.tokens, tokens, 0)
        if shared < len(child.tokens):
            child = self._split(child, child.start + shared)
        self._move(node, child)
        return child

    def append(
        self,
        node: Node,
        tokens: TokenArray[int],
        pages: Sequence[int],
        windows: Sequence[WindowPages] = (),
    ) -> Node:
        """Append `tokens` to the cursor `node`, and move the cursor to their end.

        No child of `node` may begin with the first token. `pages` are all pages of the sequence,
        and `windows` its pages of the windowed groups. The sequence continues to write to the last
        page of each group.
        """
        done = 0
        while done < len(tokens):
            room = RUN_TOKENS - node.end % RUN_TOKENS
            piece = tokens[done : done + room]
            done += len(piece)
            self.replace_end_page(node, pages, windows)
            if room < RUN_TOKENS and self._may_grow(node):
                self._grow(node, piece, pages, windows)
            else:
                child = self._add_child(node, piece, pages, windows)
                self._move(node, child)
                node = child
        return node

    def replace_end_page(
        self, node: Node, pages: Sequence[int], windows: Sequence[WindowPages] = ()
    ) -> None:
        """If `node` ends inside a page, make it name the page of a sequence that continued it.

        Both pages hold the node's tokens, bit for bit. After this, the sequences that lock a node
        hold all pages that it names. And if a conversation continues in a copy of its last page,
        the original page becomes free.
        """
        if node.end % PAGE_TOKENS:
            page, old = pages[node.end // PAGE_TOKENS], node.pages[-1]
            if page != old:
                self._pool.keep(page)
                self._pool.forget(old)
                node.pages[-1] = page
            self.replace_windowed_page(node, node.end // PAGE_TOKENS, windows)

    def replace_windowed_page(
        self, node: Node, number: int, windows: Sequence[WindowPages]
    ) -> None:
        """Make `node` name a sequence's windowed pages with this number, if it has them."""
        for pool, own, window in zip(self._windows, node.windows, windows, strict=False):
            index = number - window.first
            if 0 <= index < len(window.pages):
                page, at = window.pages[index], number - node.start // PAGE_TOKENS
                if pool.page(own[at]) != page:
                    pool.forget_ticket(own[at])
                    own[at] = pool.keep_for_node(page)

    def set_state(self, node: Node, snapshot: int) -> None:
        """Make `node` name the snapshot of the fixed-size state at its end."""
        assert self._states is not None
        self._states.forget_ticket(node.state)
        node.state = self._states.keep_for_node(snapshot)

    @staticmethod
    def _may_grow(node: Node) -> bool:
        """Whether the end of the node has one cursor, no children and no snapshot."""
        return node.locks == 1 and not node.children and node.state == NO_TICKET

    def _grow(
        self,
        node: Node,
        tokens: TokenArray[int],
        pages: Sequence[int],
        windows: Sequence[WindowPages],
    ) -> None:
        first = pages_for(node.end)
        node.tokens.extend(tokens)
        new = list(pages[first : pages_for(node.end)])
        self._keep(new)
        node.pages += new
        if self._windows:
            added = self._tickets(windows, first, pages_for(node.end))
            for own, more in zip(node.windows, added, strict=True):
                own.extend(more)
        self.tokens += len(tokens)
        if self.observer is not None:
            self.observer.grew(node)

    def _add_child(
        self,
        node: Node,
        tokens: TokenArray[int],
        pages: Sequence[int],
        windows: Sequence[WindowPages],
    ) -> Node:
        start = node.end
        first, end = start // PAGE_TOKENS, pages_for(start + len(tokens))
        own = list(pages[first:end])
        self._keep(own)
        tickets = self._tickets(windows, first, end) if self._windows else ()
        child = node.children[tokens[0]] = Node(node, start, tokens, own, node.last_used, tickets)
        self.nodes += 1
        self.tokens += len(tokens)
        if self.observer is not None:
            self.observer.grew(child)
        return child

    def _keep(self, pages: list[int]) -> None:
        for page in pages:
            self._pool.keep(page)

    def _tickets(self, windows: Sequence[WindowPages], first: int, end: int) -> Tickets:
        """Tickets of a new node for a sequence's windowed pages with numbers [first, end).

        The ticket is NO_TICKET for pages that the sequence has given back.
        """
        tickets = []
        for pool, window in zip(self._windows, windows, strict=True):
            given_back = min(max(0, window.first - first), end - first)
            pages = window.pages[first + given_back - window.first : end - window.first]
            tickets.append([NO_TICKET] * given_back + [pool.keep_for_node(page) for page in pages])
        return tuple(tickets)

    def _split(self, node: Node, position: int) -> Node:
        """Split a node in two. Returns the upper half.

        The object `node` becomes the lower half. A cursor is at the end of its node, so all cursors
        stay correct.
        """
        parent, cut = node.parent, position - node.start
        assert parent is not None and 0 < cut < len(node.tokens)
        first = node.start // PAGE_TOKENS
        upper_pages = node.pages[: pages_for(position) - first]
        if position % PAGE_TOKENS:
            self._pool.keep(upper_pages[-1])
        upper = Node(
            parent,
            node.start,
            node.tokens[:cut],
            upper_pages,
            node.last_used,
            tuple(own[: len(upper_pages)] for own in node.windows),
        )
        upper.locks = int(node.locks > 0)
        parent.children[upper.tokens[0]] = upper
        upper.children[node.tokens[cut]] = node
        node.parent, node.start = upper, position
        node.tokens = node.tokens[cut:]
        node.pages = node.pages[position // PAGE_TOKENS - first :]
        upper.blocks = node.blocks[: position // PAGE_TOKENS - first]
        node.blocks = node.blocks[position // PAGE_TOKENS - first :]
        if node.windows:
            node.windows = tuple(own[position // PAGE_TOKENS - first :] for own in node.windows)
            if position % PAGE_TOKENS:
                for pool, own in zip(self._windows, upper.windows, strict=True):
                    pool.keep_again(own[-1])
        self.nodes += 1
        self._queue_if_unused(node)
        return upper

    def _merge(self, upper: Node, lower: Node) -> None:
        """Undo a split."""
        if upper.end % PAGE_TOKENS:
            self._pool.forget(upper.pages.pop())
            for pool, own in zip(self._windows, upper.windows, strict=True):
                pool.forget_ticket(own.pop())
        assert upper.parent is not None
        upper.parent.children[upper.tokens[0]] = lower
        lower.parent, lower.start = upper.parent, upper.start
        lower.tokens = upper.tokens + lower.tokens
        lower.pages = upper.pages + lower.pages
        lower.blocks = upper.blocks + lower.blocks
        lower.hits += upper.hits
        if lower.windows:
            pairs = zip(upper.windows, lower.windows, strict=True)
            lower.windows = tuple(first + last for first, last in pairs)
        upper.parent = None
        self.nodes -= 1

    # --- locks and age ---------------------------------------------------------------------------

    def leave(self, node: Node) -> None:
        """Remove a cursor from `node`, and mark the path to `node` as used now."""
        above: Node | None = node
        while above is not None:
            above.last_used = self.clock
            above = above.parent
        above = node
        while above is not None:
            above.locks -= 1
            if above.locks:
                return
            self._queue_if_unused(above)
            above = above.parent

    def _lock(self, node: Node) -> None:
        above: Node | None = node
        while above is not None:
            above.locks += 1
            if above.locks > 1:
                return
            above = above.parent

    def _move(self, node: Node, child: Node) -> None:
        """Move a cursor to a child. If nothing else needs the nodes' boundary, merge the nodes."""
        self._lock(child)
        node.locks -= 1
        if (
            len(node.children) == 1
            and node.locks == 1
            and node.state == NO_TICKET
            and node.end % RUN_TOKENS
        ):
            self._merge(node, child)

    # --- removing --------------------------------------------------------------------------------

    def evict(self, before_remove: Callable[[Node], None] = lambda node: None) -> Node | None:
        """Remove the next leaf to evict and return it; None if every leaf is locked.

        `before_remove` is called with the node while it is still in the tree.
        """
        node = self._leaves.pop()
        if node is not None:
            before_remove(node)
            self._remove(node)
        return node

    def prune(self, node: Node) -> None:
        """Remove `node`, and then each ancestor that has no other children and no locks."""
        while not (node.locks or node.children or node.parent is None):
            parent = node.parent
            self._remove(node)
            node = parent

    def clear(self) -> None:
        """Remove all nodes. Cursors are no longer valid."""
        for node in list(self.walk()):
            self._drop(node)
        self._roots.clear()
        self._leaves = LeafQueue()
        if self.observer is not None:
            self.observer.cleared()

    @staticmethod
    def path(node: Node) -> tuple[Salt, TokenArray[int]]:
        """The salt of `node`, and the tokens from the root to its end."""
        runs = []
        while node.parent is not None:
            runs.append(node.tokens)
            node = node.parent
        assert isinstance(node, Root)
        tokens = TokenArray("i")
        for run in reversed(runs):
            tokens.extend(run)
        return node.salt, tokens

    def walk(self) -> Iterator[Node]:
        """All nodes except the roots, parents first."""
        pending: list[Node] = list(self._roots.values())
        while pending:
            for child in pending.pop().children.values():
                yield child
                pending.append(child)

    def newest(self, most: int) -> list[Node]:
        """At most `most` nodes and roots, parents first: those in use, then the newest.

        Of a node with more children, it looks at the oldest `most`.
        """
        found: list[Node] = []
        heap: list[tuple[bool, int, int, Node]] = []
        order = count()

        def look_at(nodes: Iterable[Node]) -> None:
            for node in islice(nodes, most):
                heappush(heap, (not node.locks, -node.last_used, next(order), node))

        look_at(self._roots.values())
        while heap and len(found) < most:
            found.append(heappop(heap)[-1])
            look_at(found[-1].children.values())
        return found

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.tokens[0]]
        if self.observer is not None:
            self.observer.removed(leaf)
        self._drop(leaf)
        self._queue_if_unused(parent)

    def _queue_if_unused(self, node: Node) -> None:
        """Queue a leaf without locks for eviction. Remove a root without locks and children."""
        if node.locks or node.children:
            return
        if isinstance(node, Root):
            del self._roots[node.salt]
        else:
            self._leaves.push(node)

    def _drop(self, node: Node) -> None:
        for page in node.pages:
            self._pool.forget(page)
        for pool, own in zip(self._windows, node.windows, strict=True):
            for ticket in own:
                pool.forget_ticket(ticket)
        if self._states is not None:
            self._states.forget_ticket(node.state)
        node.parent = None
        self.nodes -= 1
        self.tokens -= len(node.tokens)


def common_prefix(one: Sequence[int], other: Sequence[int], start: int = 0) -> int:
    """Number of leading tokens of `one` that `other` has from `start` on; both of one type.

    Python compares slices at memory speed, which is faster than one token after another.
    """
    low, high = 0, min(len(one), len(other) - start)
    if one[:high] == other[start : start + high]:
        return high
    while high - low > 1:  # the first `low` are the same, the first `high` are not
        middle = (low + high) // 2
        if one[low:middle] == other[start + low : start + middle]:
            low = middle
        else:
            high = middle
    return low
