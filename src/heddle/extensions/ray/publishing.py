"""What a replica publishes for the router: its load, and the prompts that its cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.ray.routing.blocks import unpack
from heddle.extensions.ray.routing.published import Load, Publisher
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from heddle.engine.observation.telemetry import EngineSnapshot
    from heddle.extensions.ray.routing.published import Published
    from heddle.hosting.registry import Registry

_TOKENS_A_HASH = 64
"""Tokens of the cache for each hash that is published: a conversation of 3,000 tokens has 37."""
_LEAST_HELD = 64
_FIRST_RATE = 1000.0
"""Tokens a second before any step was timed."""


class Publishing:
    """The publications of one replica.

    A cache keeps what was used last, and so does the publisher: it has as many hashes as the cache
    has room for. A wrong guess costs one prompt, and never an answer.
    """

    def __init__(self, registry: Registry) -> None:
        """`registry` has the models. They are loaded."""
        self._registry = registry
        self._best = 0.0
        tokens = sum(now.pages_total * PAGE_TOKENS for now in self._snapshots())
        self._publisher = Publisher(most_held=max(_LEAST_HELD, tokens // _TOKENS_A_HASH))

    def computed(self, key: bytes) -> None:
        """The prompt of a packed key is in the cache now."""
        self._publisher.stored(unpack(key))

    def publish(self, *, draining: bool) -> Published:
        """The next publication."""
        now = self._snapshots()
        load = Load(
            waiting_tokens=sum(each.waiting_tokens for each in now),
            prefill_rate=self._rate(now),
            models=frozenset(self._registry.engines),
            known=frozenset(self._registry.names),
            draining=draining,
        )
        return self._publisher.publish(load)

    def _rate(self, now: list[EngineSnapshot]) -> float:
        """Tokens a second: the newest while there is work, else the best so far.

        An idle replica measures nothing. If its last steps were slow by accident, no router would
        choose it, and it would never show that it has become quick again.
        """
        rates = [each.busy_rate for each in now if each.busy_rate > 0.0]
        rate = sum(rates) / len(rates) if rates else 0.0
        self._best = max(self._best, rate)
        busy = any(each.running or each.queue_depth for each in now)
        return (rate if busy else self._best) or _FIRST_RATE

    def _snapshots(self) -> list[EngineSnapshot]:
        return [engine.snapshot() for engine in self._registry.engines.values()]
