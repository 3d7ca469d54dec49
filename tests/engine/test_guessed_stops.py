"""Tokens after a stop string do not count, also if the same step has confirmed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guessers import Oracle
from heddle.parameters import Speculation
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.engine import Engine

FREE = SamplingParams(seed=1, max_tokens=24, ignore_eos=True)


def test_guesses_after_a_stop_string_do_not_count(start: Callable[..., Engine]) -> None:
    """Else `usage` would depend on which steps guessed."""
    engine = start(speculation="auto")
    free = engine.complete("hello", FREE)
    known = [token.token for token in free.tokens]
    engine.thread._loop.speculator._drafters = {"lookup": lambda _: Oracle(known, lies=1 << 40)}
    wanted = {"stop": (free.text[9:11],), "speculation": Speculation("lookup", 8)}
    params = SamplingParams(seed=1, max_tokens=24, ignore_eos=True, **wanted)
    stopped = engine.complete("hello", params)
    assert stopped.usage.accepted_tokens > len(stopped.tokens), "the step confirmed tokens after it"
    assert stopped.usage.completion_tokens == len(stopped.tokens)
