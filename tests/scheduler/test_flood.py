"""A flood of one client, and the first-token times of another. Time is counted in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fake_executor import FakeExecutor
from heddle.cache.cache import Cache
from heddle.errors import OverloadedError
from heddle.sampling_params import SamplingParams
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence
from heddle.state import StateMemory
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS, BATCH, QUEUE = 4, 32, 16
PROMPT, OUTPUT = 200, 12  # of the guest, in tokens
REQUESTS = 10


class Load:
    """A guest that asks again as soon as it has its answer, beside a flood of other requests."""

    def __init__(self, flood: str | None, *, prompt: int, most: int, pages: int) -> None:
        self.flood, self.flood_prompt, self.flood_most = flood, prompt, most
        cache = Cache(StateMemory(pages), enabled=False)
        self.scheduler = Scheduler(SLOTS, BATCH, QUEUE, cache, 1024)
        self.executor = FakeExecutor(pages)
        self.ids = iter(range(10**6))
        self.flood_tokens = 0

    def sequence(self, client: str, prompt: int, most: int) -> Sequence:
        identity = next(self.ids)
        params = SamplingParams(seed=identity, ignore_eos=True, max_tokens=most)
        tokens = [(identity * 7 + i * i) % 31 + 1 for i in range(prompt)]
        return Sequence(identity, params, tokens, prompt, frozenset(), client=client)

    def fill(self) -> None:
        """Send requests of the flood until the queue is full."""
        while self.flood is not None:
            try:
                self.scheduler.add(self.sequence(self.flood, self.flood_prompt, self.flood_most))
            except OverloadedError:
                return

    def step(self, guest: Sequence | None = None) -> bool:
        """Returns whether the guest got a token."""
        self.fill()
        events = self.scheduler.update(execute(self.executor, self.scheduler.schedule()))
        self.flood_tokens += sum(event.sequence.client == self.flood for event in events)
        return any(event.sequence is guest for event in events)

    def first_token_steps(self) -> Iterator[int]:
        """Steps until the first token of each request of the guest."""
        for _ in range(60 if self.flood else 0):
            self.step()
        for _ in range(REQUESTS):
            guest = self.sequence("guest", PROMPT, OUTPUT)
            self.fill()
            self.scheduler.add(guest)
            steps = 1
            while not self.step(guest):
                steps += 1
                assert steps < 1000, "the guest starves"
            yield steps
            while not guest.ended:
                self.step()


@pytest.mark.parametrize("pages", [200, 64])
@pytest.mark.parametrize(("prompt", "most"), [(8, 600), (300, 40), (300, 1), (500, 500)])
def test_a_flood_leaves_first_token_times_of_others(prompt: int, most: int, pages: int) -> None:
    calm = max(Load(None, prompt=0, most=0, pages=pages).first_token_steps())
    load = Load("flood", prompt=prompt, most=most, pages=pages)
    flooded = max(load.first_token_steps())
    assert calm == -(-PROMPT // BATCH)
    assert flooded <= 2 * calm
    assert load.flood_tokens > REQUESTS, "the flood starves"


def test_a_client_that_floods_harms_itself() -> None:
    load = Load("guest", prompt=8, most=600, pages=200)
    with pytest.raises(OverloadedError):
        next(load.first_token_steps())
