"""The two routers that the simulation compares: Heddle's, and Ray's power of two choices."""

from __future__ import annotations

import random
import time
from array import array
from typing import TYPE_CHECKING, Protocol

from heddle.extensions.ray.routing.choose import Ask, choose
from heddle.extensions.ray.routing.fleet import Fleet

if TYPE_CHECKING:
    from heddle.extensions.ray.routing.published import Publication
    from routing.replica import Replica
    from routing.traffic import Conversation


class Policy(Protocol):
    """Sends requests to replicas."""

    def route(self, talk: Conversation, avoid: tuple[str, ...], now: float) -> str:
        """The name of the replica that gets the request."""

    def hear(self, name: str, publication: Publication, now: float) -> None:
        """A publication has arrived."""

    def lose(self, name: str) -> None:
        """A replica has gone."""


class Heddle:
    """`routers` ingresses with a view of their own; requests come to them in turn.

    Attributes:
        decisions, noting: seconds of each decision, and of noting what was sent.
    """

    def __init__(self, replicas: list[Replica], routers: int = 1) -> None:
        self.fleets = [Fleet() for _ in range(routers)]
        for fleet in self.fleets:
            fleet.update(replica.name for replica in replicas)
        self.decisions, self.noting = array("f"), array("f")

    def route(self, talk: Conversation, avoid: tuple[str, ...], now: float) -> str:
        fleet = self.fleets[len(self.decisions) % len(self.fleets)]
        ask = Ask(talk.key(), "model", "", talk.client, avoid)
        began = time.perf_counter()
        best = choose(ask, fleet, now)
        chosen = time.perf_counter()
        fleet.sent(best.name, ask.key, now, held=best.held, client=ask.client, delay=best.delay)
        self.noting.append(time.perf_counter() - chosen)
        self.decisions.append(chosen - began)
        return best.name

    def hear(self, name: str, publication: Publication, now: float) -> None:
        for fleet in self.fleets:
            fleet.hear(name, publication, now)

    def lose(self, name: str) -> None:
        for fleet in self.fleets:
            fleet.remove(name)


class PowerOfTwo:
    """Ray's default: of two replicas at random, the one with fewer ongoing requests.

    It sees the exact number at once. Ray's routers see it through a cache and probes.
    """

    def __init__(self, replicas: list[Replica], seed: int = 0) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._random = random.Random(seed)

    def route(self, talk: Conversation, avoid: tuple[str, ...], now: float) -> str:
        able = [one for name, one in self._replicas.items() if name not in avoid]
        two = self._random.sample(able, min(2, len(able)))
        return min(two, key=lambda replica: replica.ongoing).name

    def hear(self, name: str, publication: Publication, now: float) -> None:
        pass

    def lose(self, name: str) -> None:
        self._replicas.pop(name, None)
