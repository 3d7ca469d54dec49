"""The queue: which waiting sequence gets the next slot, and how much each client was served.

The order is: the lowest `priority`; then the client with the fewest slots; then the client that was
served least; then arrival. So a client without a slot never waits behind the requests of a client
with slots. Among clients with equally many slots, the one with the least service is next.

**Virtual time** measures service within a class, which is the sequences of one priority. A prompt
token that a step computes costs 1, an output token OUTPUT_COST. Each client has an account with the
cost of its tokens. The clock of the class advances by the cost of all tokens divided by the number
of active clients: that is the account of a client that gets exactly its share. A client that
becomes active starts at the clock, unless its account is ahead. So a client earns nothing while it
asks for nothing, and a debt lasts until the others have been served as much. (Start-time fair
queueing, Goyal, Vin and Cheng 1996, with tokens as work and the clock of weighted fair queueing;
compare the virtual token counter of Sheng et al. 2024.)

No sequence of a class starves while the class is served. The sequences of a client with slots end,
and then it has no slot. The account of a client without a slot stays, and the clock advances, so
from some time on all clients that arrive start behind it. Until then finitely many tokens are
served before it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.scheduler.sequence import Account

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from heddle.scheduler.sequence import Sequence

OUTPUT_COST = 4
"""Cost of an output token, where a prompt token costs 1. Steps with prompts share one reading of
the weights among many tokens; a step that decodes shares it among its streams."""

_MANY = 1000
"""Most accounts of a class before those of inactive clients are dropped."""


@dataclass(slots=True, eq=False)
class _Class:
    """The sequences of one priority.

    Attributes:
        clock: virtual time.
        active: number of clients with active sequences.
        accounts: the active clients, and inactive clients whose account is ahead of the clock.
    """

    clock: float = 0.0
    active: int = 0
    accounts: dict[Hashable | None, Account] = field(default_factory=dict)

    def serve(self, cost: float) -> None:
        """Advance the clock. Drop inactive accounts that it has passed."""
        if self.active:
            self.clock += cost / self.active
        if len(self.accounts) > self.active:
            many = len(self.accounts) > _MANY
            for client, account in list(self.accounts.items()):
                if not account.active and (many or account.service <= self.clock):
                    del self.accounts[client]


class Queue:
    """Waiting sequences, and the accounts of clients. Not thread-safe.

    Attributes:
        active: sequences that have not ended and are not paused, with or without a slot.
        waiting: sequences without a slot among them.
        shared: whether several clients have accounts in one class. If not, service needs no count.
    """

    def __init__(self) -> None:
        self.active = 0
        self.shared = False
        self._classes: dict[int, _Class] = {}
        self.waiting = 0
        self._arrivals = 0

    # --- life of a sequence ----------------------------------------------------------------------

    def enter(self, sequence: Sequence) -> None:
        """A sequence gets work: it is new, or its caller has resumed it."""
        of_class = self._classes.setdefault(sequence.priority, _Class())
        account = of_class.accounts.get(sequence.client)
        if account is None:
            account = of_class.accounts[sequence.client] = Account(of_class.clock)
        if not account.active:
            account.service = max(account.service, of_class.clock)
            of_class.active += 1
        account.active += 1
        self.active += 1
        sequence.account = account
        self._note_sharing()

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended or pauses. It must not wait for a slot."""
        of_class, account = self._classes[sequence.priority], sequence.account
        self.active -= 1
        account.active -= 1
        if account.active:
            return
        of_class.active -= 1
        if not of_class.active:
            del self._classes[sequence.priority]
        elif account.service <= of_class.clock:
            del of_class.accounts[sequence.client]
        self._note_sharing()

    def _note_sharing(self) -> None:
        self.shared = any(len(one.accounts) > 1 for one in self._classes.values())

    def arrive(self, sequence: Sequence) -> None:
        """Let a new or resumed sequence wait for a slot, behind those of its client."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self.wait(sequence)

    def wait(self, sequence: Sequence) -> None:
        """Let a sequence wait for a slot, at the place of its arrival."""
        insort(sequence.account.waiting, sequence, key=_arrival)
        self.waiting += 1

    def remove(self, sequence: Sequence) -> None:
        """A sequence stops waiting: it got a slot or was cancelled."""
        sequence.account.waiting.remove(sequence)
        self.waiting -= 1

    # --- order -----------------------------------------------------------------------------------

    def head(self, running: Iterable[Sequence]) -> Sequence | None:
        """The sequence that gets the next slot, beside those in `running`; None if none waits."""
        if not self.waiting:
            return None
        for _, of_class in sorted(self._classes.items()):
            queues = [account.waiting for account in of_class.accounts.values()]
            heads = [waiting[0] for waiting in queues if waiting]
            if heads:
                held = slots_by_account(running)
                return min(heads, key=lambda one: (held[id(one.account)], *_turn(one)))
        raise AssertionError("a waiting sequence has no account")

    def has(self, client: Hashable | None) -> bool:
        """Whether a client has active sequences."""
        accounts = (of_class.accounts.get(client) for of_class in self._classes.values())
        return any(account is not None and account.active for account in accounts)

    def serve(self, computed: Iterable[tuple[Sequence, float]]) -> None:
        """Count the cost of the tokens that a step has computed for each sequence."""
        costs: dict[int, float] = {}
        for sequence, cost in computed:
            sequence.account.service += cost
            costs[sequence.priority] = costs.get(sequence.priority, 0.0) + cost
        for priority, cost in costs.items():
            if priority in self._classes:
                self._classes[priority].serve(cost)
        self._note_sharing()


def slots_by_account(running: Iterable[Sequence]) -> Counter[int]:
    """The number of slots of each account, by the account's id."""
    return Counter(id(sequence.account) for sequence in running)


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _turn(sequence: Sequence) -> tuple[float, int]:
    return sequence.account.service, sequence.arrival
