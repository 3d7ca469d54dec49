"""The prefix tree: runs of token ids and the pages that hold their keys and values.

One tree of nodes per salt. A node covers tokens [start, end) of the path that leads to it, and
names the pages with indices [start // 32, ceil(end / 32)). Where a boundary between nodes lies
inside a page, both name a page for that index, the deeper one's counts: it holds the tokens of
both. Tokens are compared, never hashes.

::

    root -- "You are a helpful" -+- " assistant. What is" -- " a loom?"      <- a sequence's cursor
                                 +- " poet."                                    locks its path

Who may go: a node that is a leaf and not locked. Sequences lock the node where what they have
published ends; a node's `locks` are those and the children that have some themselves, so that a
lock reaches the root in one step for every node that had none.

Nodes do not cross multiples of RUN_TOKENS. So eviction takes a long document from its end, a piece
at a time, splits and merges cost no more than one run, and a run is a handy unit to store.

Pages of windowed groups, and snapshots of fixed-size state, are named by tickets that may become
stale at any time; see :class:`heddle.cache.pages.RevocablePool`. Their pools, not the tree, decide
which of them go. A node without them still has its pages of the group of all positions.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.cache.leaves import LeafQueue
from heddle.cache.pages import NO_TICKET
from heddle.state import PAGE_TOKENS, pages_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.cache.pages import PagePool, RevocablePool
    from heddle.step import WindowPages

RUN_TOKENS = 4 * PAGE_TOKENS
"""Most tokens of a node: runs end at the multiples of this, if not before."""

Salt = str | None
Tickets = tuple[list[int], ...]
Run = array  # of C ints: 4 bytes a token, compared at memory speed, nothing for the collector


class Node:
    """A run of tokens. Written by its tree alone.

    Attributes:
        parent: None for a root, and once the node is gone.
        start: position of its first token.
        tokens: the run; empty for a root alone.
        pages: see the module.
        windows: for each windowed group, tickets for the same page numbers as `pages`.
        children: by their first token.
        locks: sequences whose cursor it is, and children with locks.
        last_used: when a cursor last left it or one below it, on the tree's clock; what is above
            was used at the same time or later.
        state: ticket for the snapshot of the fixed-size state at `end`; NO_TICKET without one. It
            stays with the end of the run and goes with it.
    """

    __slots__ = (
        "children",
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
        tokens: Run[int],
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

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + len(self.tokens)


class Root(Node):
    """Where the prefixes of one salt begin."""

    __slots__ = ("salt",)

    def __init__(self, salt: Salt) -> None:
        super().__init__(None, 0, Run("i"), [], 0)
        self.salt = salt


@dataclass(frozen=True, slots=True)
class Match:
    """What the tree has of some tokens. Good until the tree changes.

    Attributes:
        salt: where it was looked up.
        length: leading tokens that are there.
        path: the nodes that hold them, the root first; the last may reach further.
    """

    salt: Salt
    length: int
    path: tuple[Node, ...]

    @property
    def pages(self) -> list[int]:
        """The pages that hold the tokens; what else the last one holds is not theirs."""
        pages: list[int] = []
        for node in self.path:
            del pages[node.start // PAGE_TOKENS :]
            pages += node.pages
        del pages[pages_for(self.length) :]
        return pages

    def tickets(self, group: int, first: int) -> list[int]:
        """Tickets for the pages of a windowed group with the tokens, from number `first` on."""
        tickets: list[int] = []
        for node in self.path:
            skipped = max(0, first - node.start // PAGE_TOKENS)
            if node.windows and skipped < len(node.windows[group]):
                del tickets[max(0, node.start // PAGE_TOKENS - first) :]
                tickets += node.windows[group][skipped:]
        del tickets[max(0, pages_for(self.length) - first) :]
        return tickets

    def up_to(self, length: int) -> Match:
        """Its first `length` tokens."""
        if length == self.length:
            return self
        path = tuple(node for node in self.path if node.start < length or node.parent is None)
        return Match(self.salt, length, path)

    def whole_pages(self) -> Match:
        """As much of it as fills whole pages."""
        return self.up_to(self.length - self.length % PAGE_TOKENS)


class RadixTree:
    """All prefixes of all salts. Keeps pages as its nodes name them.

    Args:
        pool: of the pages of all positions.
        windows: of the pages of each windowed group.
        states: of snapshots of fixed-size state; None without.

    Attributes:
        nodes: how many there are, roots not counted.
        tokens: how many they hold.
        clock: the time of `last_used`; the owner moves it on.
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

    # --- finding ---------------------------------------------------------------------------------

    def match(self, salt: Salt, tokens: Run[int]) -> Match:
        """The longest prefix of `tokens` that is there. Changes nothing."""
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
        """Put a cursor where the match ends, and so lock what was matched.

        The node that it ends in is split there, so that the rest of it may still go.
        """
        node: Node
        if not match.path:
            node = self._roots[match.salt] = Root(match.salt)
        elif match.length < match.path[-1].end:
            node = self._split(match.path[-1], match.length)
        else:
            node = match.path[-1]
        self._lock(node)
        return node

    # --- growing ---------------------------------------------------------------------------------

    def follow(self, node: Node, tokens: Run[int]) -> Node | None:
        """Move a cursor from `node` to the child that begins as `tokens` do; None without one.

        The child is split where the tokens part from it: all of the result is theirs.
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
        tokens: Run[int],
        pages: Sequence[int],
        windows: Sequence[WindowPages] = (),
    ) -> Node:
        """Put tokens after the cursor `node`, whose children begin otherwise, and move it there.

        `pages` are those of the sequence from its first token on, `windows` those that it holds of
        the windowed groups; it keeps writing to the last of each.
        """
        done = 0
        while done < len(tokens):
            room = RUN_TOKENS - node.end % RUN_TOKENS
            piece = tokens[done : done + room]
            done += len(piece)
            self.lend(node, pages, windows)
            if room < RUN_TOKENS and self._may_grow(node):
                self._grow(node, piece, pages, windows)
            else:
                child = self._add_child(node, piece, pages, windows)
                self._move(node, child)
                node = child
        return node

    def lend(self, node: Node, pages: Sequence[int], windows: Sequence[WindowPages] = ()) -> None:
        """Where `node` ends inside a page, have it name the page of a sequence that went on.

        Both hold the tokens of the node, bit for bit. So what locked nodes name, their sequences
        hold anyway, and a conversation that goes on in a copy of its last page frees the original.
        """
        if node.end % PAGE_TOKENS:
            page, old = pages[node.end // PAGE_TOKENS], node.pages[-1]
            if page != old:
                self._pool.keep(page)
                self._pool.forget(old)
                node.pages[-1] = page
            self.renew(node, node.end // PAGE_TOKENS, windows)

    def renew(self, node: Node, number: int, windows: Sequence[WindowPages]) -> None:
        """Have `node` name a sequence's own windowed pages with this number, where it has them."""
        for pool, own, window in zip(self._windows, node.windows, windows, strict=False):
            index = number - window.first
            if 0 <= index < len(window.pages):
                page, at = window.pages[index], number - node.start // PAGE_TOKENS
                if pool.page(own[at]) != page:
                    pool.forget_ticket(own[at])
                    own[at] = pool.keep_for_node(page)

    def set_state(self, node: Node, snapshot: int) -> None:
        """Have `node` name the snapshot of the fixed-size state at its end."""
        assert self._states is not None
        self._states.forget_ticket(node.state)
        node.state = self._states.keep_for_node(snapshot)

    @staticmethod
    def _may_grow(node: Node) -> bool:
        """Whether the one cursor that locks it is all there is at its end."""
        return node.locks == 1 and not node.children and node.state == NO_TICKET

    def _grow(
        self, node: Node, tokens: Run[int], pages: Sequence[int], windows: Sequence[WindowPages]
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

    def _add_child(
        self, node: Node, tokens: Run[int], pages: Sequence[int], windows: Sequence[WindowPages]
    ) -> Node:
        start = node.end
        first, end = start // PAGE_TOKENS, pages_for(start + len(tokens))
        own = list(pages[first:end])
        self._keep(own)
        tickets = self._tickets(windows, first, end) if self._windows else ()
        child = node.children[tokens[0]] = Node(node, start, tokens, own, node.last_used, tickets)
        self.nodes += 1
        self.tokens += len(tokens)
        return child

    def _keep(self, pages: list[int]) -> None:
        for page in pages:
            self._pool.keep(page)

    def _tickets(self, windows: Sequence[WindowPages], first: int, end: int) -> Tickets:
        """Tickets for a sequence's windowed pages with numbers [first, end), for one more node."""
        found = []
        for pool, window in zip(self._windows, windows, strict=True):
            gone = min(max(0, window.first - first), end - first)
            pages = window.pages[first + gone - window.first : end - window.first]
            found.append([NO_TICKET] * gone + [pool.keep_for_node(page) for page in pages])
        return tuple(found)

    def _split(self, node: Node, position: int) -> Node:
        """Cut a node in two and return the upper one.

        The object stays the lower half: cursors stand at ends, so all of them stay right.
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
        if node.windows:
            node.windows = tuple(own[position // PAGE_TOKENS - first :] for own in node.windows)
            if position % PAGE_TOKENS:
                for pool, own in zip(self._windows, upper.windows, strict=True):
                    pool.keep_again(own[-1])
        self.nodes += 1
        self._offer(node)
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
        if lower.windows:
            pairs = zip(upper.windows, lower.windows, strict=True)
            lower.windows = tuple(first + last for first, last in pairs)
        upper.parent = None
        self.nodes -= 1

    # --- locks and age ---------------------------------------------------------------------------

    def leave(self, node: Node) -> None:
        """A cursor goes away from `node`. The path to it was used until now."""
        above: Node | None = node
        while above is not None:
            above.last_used = self.clock
            above = above.parent
        above = node
        while above is not None:
            above.locks -= 1
            if above.locks:
                return
            self._offer(above)
            above = above.parent

    def _lock(self, node: Node) -> None:
        above: Node | None = node
        while above is not None:
            above.locks += 1
            if above.locks > 1:
                return
            above = above.parent

    def _move(self, node: Node, child: Node) -> None:
        """A cursor moves down. A boundary that it alone stood for goes away."""
        self._lock(child)
        node.locks -= 1
        if (
            len(node.children) == 1
            and node.locks == 1
            and node.state == NO_TICKET
            and node.end % RUN_TOKENS
        ):
            self._merge(node, child)

    # --- going -----------------------------------------------------------------------------------

    def evict(self, last_look: Callable[[Node], None] = lambda node: None) -> Node | None:
        """Remove the leaf that goes first and return it; None if every one is locked.

        `last_look` is shown the node while it is in its place.
        """
        node = self._leaves.pop()
        if node is not None:
            last_look(node)
            self._remove(node)
        return node

    def prune(self, node: Node) -> None:
        """Remove `node` and what leads to it alone, as far as nothing else needs it."""
        while not (node.locks or node.children or node.parent is None):
            parent = node.parent
            self._remove(node)
            node = parent

    def clear(self) -> None:
        """Remove everything. Cursors are void."""
        for node in list(self.walk()):
            self._drop(node)
        self._roots.clear()
        self._leaves.clear()

    @staticmethod
    def path(node: Node) -> tuple[Salt, Run[int]]:
        """The salt and the tokens that lead to the end of `node`."""
        runs = []
        while node.parent is not None:
            runs.append(node.tokens)
            node = node.parent
        assert isinstance(node, Root)
        tokens = Run("i")
        for run in reversed(runs):
            tokens.extend(run)
        return node.salt, tokens

    def walk(self) -> Iterator[Node]:
        """All nodes but the roots, parents first."""
        pending: list[Node] = list(self._roots.values())
        while pending:
            for child in pending.pop().children.values():
                yield child
                pending.append(child)

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.tokens[0]]
        self._drop(leaf)
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        """If no one needs the node, it may go; a root goes at once."""
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

    # --- proof -----------------------------------------------------------------------------------

    def check_integrity(self, cursors: Sequence[Node]) -> None:
        """Prove structure, locks, ages, totals and queue, given where the cursors are. For tests.

        Raises:
            AssertionError: saying what is wrong.
        """
        nodes = list(self.walk())
        for node in nodes:
            parent = node.parent
            assert parent is not None and parent.end == node.start, "a node begins elsewhere"
            assert node.tokens and parent.children[node.tokens[0]] is node, "filed wrongly"
            assert node.start // RUN_TOKENS == (node.end - 1) // RUN_TOKENS, "a run is too long"
            named = pages_for(node.end) - node.start // PAGE_TOKENS
            assert len(node.pages) == named, f"{len(node.pages)} pages for {named}"
            assert len(node.windows) == len(self._windows), "a windowed group is missing"
            assert all(len(own) == named for own in node.windows), "tickets are missing"
            assert parent.last_used >= node.last_used, "a parent is older than its child"
        for salt, root in self._roots.items():
            assert root.salt == salt and (root.children or root.locks), "an empty root stayed"
        for node in (*nodes, *self._roots.values()):
            locked = sum(child.locks > 0 for child in node.children.values())
            standing = sum(cursor is node for cursor in cursors)
            assert node.locks == locked + standing, f"{node.locks} locks, {locked} + {standing}"
        assert self.nodes == len(nodes), f"{self.nodes} nodes counted, {len(nodes)} there"
        assert self.tokens == sum(len(node.tokens) for node in nodes), "tokens are miscounted"
        self._leaves.check_integrity({n for n in nodes if not (n.locks or n.children)})


def common_prefix(one: Sequence[int], other: Sequence[int], start: int = 0) -> int:
    """How many leading tokens of `one` stand in `other` from `start` on; both of one type.

    Slices are compared at memory speed, tokens one by one are not.
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
