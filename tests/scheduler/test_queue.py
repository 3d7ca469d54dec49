"""The order of the queue, the accounts of clients, and who gives way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cache_integrity import check_cache
from fake_executor import FakeExecutor, solo_output
from heddle.cache.cache import Cache
from heddle.errors import OverloadedError
from heddle.sampling_params import SamplingParams
from heddle.scheduler.preemption import SLICE, gives_pages
from heddle.scheduler.queue import Queue
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence
from heddle.state import PAGE_TOKENS, StateMemory
from steps import execute

if TYPE_CHECKING:
    from heddle.step import StepPlan


class Rig:
    """A scheduler and a fake executor. Every sequence must give the output that it gives alone."""

    def __init__(
        self,
        slots: int = 2,
        queue: int = 8,
        pages: int = 64,
        batch_tokens: int = 64,
    ) -> None:
        self.cache = Cache(StateMemory(pages))
        self.scheduler = Scheduler(slots, batch_tokens, queue, self.cache, pages * PAGE_TOKENS)
        self.executor = FakeExecutor(pages)
        self.ids = 0
        self.ended: list[Sequence] = []

    def add(
        self, client: str | None = None, priority: int = 0, prompt: int = 4, most: int = 8
    ) -> Sequence:
        self.ids += 1
        params = SamplingParams(seed=self.ids, ignore_eos=True, max_tokens=most, priority=priority)
        tokens = [(self.ids + i) % 31 + 1 for i in range(prompt)]
        sequence = Sequence(self.ids, params, tokens, prompt, frozenset(), client=client)
        self.scheduler.add(sequence)
        return sequence

    def step(self, count: int = 1) -> StepPlan:
        for _ in range(count):
            plan = self.scheduler.schedule()
            for event in self.scheduler.update(execute(self.executor, plan)):
                if event.finish is not None:
                    self.ended.append(event.sequence)
            check_cache(self.cache)
        return plan

    def finish(self) -> list[Sequence]:
        """Run to the end. Returns the sequences in the order of their ends."""
        while self.scheduler.busy:
            self.step()
        for sequence in self.ended:
            prompt = sequence.tokens[: sequence.prompt_tokens]
            alone = solo_output(prompt, sequence.params, 10**6)
            assert sequence.tokens[sequence.prompt_tokens :] == alone
        return self.ended

    @property
    def running(self) -> set[Sequence]:
        return {sequence for sequence in self.scheduler.slots if sequence is not None}


def lone(client: str | None = None, priority: int = 0) -> Sequence:
    params = SamplingParams(priority=priority)
    return Sequence(0, params, [1], 1, frozenset(), client=client)


def queued(queue: Queue, *sequences: Sequence) -> None:
    for sequence in sequences:
        queue.enter(sequence)
        queue.arrive(sequence)


def order(queue: Queue) -> list[Sequence]:
    """Take all sequences, as if each had 10 tokens of service at once."""
    taken = []
    while (head := queue.head(())) is not None:
        queue.remove(head)
        queue.serve([(head, 10)])
        taken.append(head)
    return taken


def test_the_order_is_priority_then_service_then_arrival() -> None:
    queue = Queue()
    a1, a2, a3, b1, b2 = (lone(client) for client in "aaabb")
    urgent, late = lone("a", priority=-1), lone("c", priority=5)
    queued(queue, late, a1, a2, a3, b1, b2, urgent)
    assert order(queue) == [urgent, a1, b1, a2, b2, a3, late]


def test_one_client_is_served_in_order_of_arrival() -> None:
    queue = Queue()
    sequences = [lone() for _ in range(5)]
    queued(queue, *sequences)
    assert not queue.shared
    assert order(queue) == sequences


def test_a_client_that_was_away_earns_nothing_and_keeps_its_debt() -> None:
    queue = Queue()
    a, b = lone("a"), lone("b")
    queued(queue, a, b)
    queue.serve([(a, 100), (b, 20)])  # the clock is at 60
    queue.remove(b)
    queue.leave(b)
    queue.remove(a)
    queue.leave(a)  # nobody is left: everything begins anew
    again = [lone("a"), lone("b"), lone("c")]
    queued(queue, *again)
    assert [one.account.service for one in again] == [0.0, 0.0, 0.0]
    queue.serve([(again[0], 90)])  # the clock is at 30
    for one in again[:2]:
        queue.remove(one)
        queue.leave(one)
    back = [lone("a"), lone("b")]
    queued(queue, *back)
    assert [one.account.service for one in back] == [90.0, 30.0]


def test_accounts_behind_the_clock_are_dropped() -> None:
    queue = Queue()
    stays = lone("stays")
    queued(queue, stays)
    for number in range(50):
        guest = lone(f"guest {number}")
        queued(queue, guest)
        queue.serve([(guest, 10)])
        queue.remove(guest)
        queue.leave(guest)
        queue.serve([(stays, 100)])
    assert list(queue._classes[0].accounts) == ["stays"]
    assert not queue.shared


def test_clients_that_keep_arriving_do_not_starve_one_in_debt() -> None:
    queue = Queue()
    debtor = lone("debtor")
    queued(queue, debtor)
    queue.serve([(debtor, 1000)])
    for number in range(1000):
        guest = lone(f"guest {number}")
        queued(queue, guest)
        head = queue.head(())
        if head is debtor:
            break
        assert head is not None
        queue.remove(head)
        queue.serve([(head, 30)])
        queue.leave(head)
    assert number < 100


def test_a_lower_class_gives_way_and_gives_the_same_output() -> None:
    rig = Rig(slots=2)
    low = [rig.add(priority=1, most=20) for _ in range(2)]
    rig.step(5)
    high = rig.add(priority=-3, most=6)
    rig.step()
    assert rig.running == {low[0], high}, "the youngest of the lower class gives way"
    assert rig.finish() == [high, *low]
    assert rig.scheduler.admission.preemptions == 1


def test_an_equal_class_does_not_give_way() -> None:
    rig = Rig(slots=1)
    first, second = rig.add(most=20), rig.add(most=3)
    assert rig.finish() == [first, second]
    assert rig.scheduler.admission.preemptions == 0


def test_a_lower_class_gives_way_for_pages() -> None:
    rig = Rig(slots=4, pages=4)
    low = rig.add(priority=1, prompt=2 * PAGE_TOKENS, most=30)
    rig.step(2)
    high = rig.add(prompt=3 * PAGE_TOKENS, most=PAGE_TOKENS)
    rig.step()
    assert rig.running == {high}
    assert rig.finish() == [high, low]


def test_pages_come_from_the_client_with_the_most_slots_then_from_the_one_served_most() -> None:
    queue, clients = Queue(), ("first", "served", "waiting")
    running = [lone(client) for client in clients]
    queued(queue, *running)
    for rank, sequence in enumerate(running):
        sequence.rank = rank
    queue.serve([(running[1], 9.0)])
    assert gives_pages(running) is running[1]
    queued(queue, twin := lone("waiting"))
    twin.rank = 3
    assert gives_pages([*running, twin]) is twin, "its youngest"


def test_nobody_follows_a_lower_class() -> None:
    rig = Rig(slots=2, batch_tokens=16)
    low = rig.add(priority=1, prompt=60)
    rig.step()
    params = SamplingParams(seed=9, max_tokens=2, ignore_eos=True)
    high = Sequence(99, params, [*low.tokens[:60], 3], 61, frozenset())
    rig.scheduler.add(high)
    plan = rig.step()
    assert [chunk.slot for chunk in plan.chunks] == [high.slot], "it has the whole budget"
    assert rig.finish() == [high, low]


def test_a_newcomer_gets_a_slot_of_a_flood_at_once() -> None:
    rig = Rig(slots=4, queue=20)
    flood = [rig.add("flood", most=200) for _ in range(12)]
    rig.step(3)
    guest = rig.add("guest", most=5)
    rig.step(2)
    assert guest in rig.running
    assert flood[3] not in rig.running, "its youngest gives way"
    assert rig.running > set(flood[:3])
    rig.finish()
    assert rig.scheduler.admission.preemptions == 1
    assert rig.ended[0] is guest


def test_clients_take_turns_on_one_slot() -> None:
    rig = Rig(slots=1)
    most = 3 * SLICE
    first, second = rig.add("a", most=most), rig.add("b", most=most)
    holders = []
    while rig.scheduler.busy:
        rig.step()
        holders += [one.client for one in rig.running if one.client not in holders[-1:]]
    assert rig.finish() == [first, second]
    assert holders == ["a", "b", "a", "b", "a", "b"]


def test_a_full_queue_has_places_for_other_clients() -> None:
    rig = Rig(slots=2, queue=3)
    for _ in range(5):
        rig.add("flood")
    for client in ("flood", None):
        with pytest.raises(OverloadedError):
            rig.add(client)
    rig.add("a")
    with pytest.raises(OverloadedError):
        rig.add("a")
    rig.add("b")
    with pytest.raises(OverloadedError):
        rig.add("c")
    assert len(rig.finish()) == 7


def shares(plan: StepPlan) -> dict[int, int]:
    return {chunk.slot: len(chunk.tokens) for chunk in plan.chunks}


def test_prompts_of_the_client_that_was_served_least_come_first() -> None:
    rig = Rig(slots=3, batch_tokens=32)
    first, second = rig.add("flood", prompt=100), rig.add("flood", prompt=100)
    rig.step()
    guest = rig.add("guest", prompt=20)
    plan = rig.step(2)
    assert shares(plan)[guest.slot] == 20
    assert shares(plan)[first.slot] == 12
    assert second.slot not in shares(plan)
    rig.finish()


def test_a_leader_takes_the_place_of_its_follower() -> None:
    rig = Rig(slots=3, batch_tokens=32)
    leader = rig.add("flood", prompt=200)
    rig.step()
    other = rig.add("other", prompt=150)
    rig.step()
    leader.account.service, other.account.service = 300.0, 200.0
    params = SamplingParams(seed=9, max_tokens=2, ignore_eos=True)
    guest = Sequence(99, params, [*leader.tokens[:190], 3], 191, frozenset(), client="guest")
    rig.scheduler.add(guest)
    plan = rig.step()
    assert guest.leader is leader
    assert shares(plan)[leader.slot] == 32
    rig.finish()
