"""Ray Serve's view of the router: replicas and requests come from Ray, the order from `choose`.

A deployment names it in `request_router_config`:

    RequestRouterConfig(
        request_router_class="heddle.extensions.ray.routing.ray_router:HeddleRouter",
        request_routing_stats_period_s=1.0,
    )

and implements `record_routing_stats`, which returns what `Publisher.publish` does. The first
argument of a call is an `Exchange`.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from heddle.errors import HeddleError
from heddle.extensions.ray.routing.blocks import unpack
from heddle.extensions.ray.routing.choose import Ask, Choice, NoReplicaError, choose
from heddle.extensions.ray.routing.fleet import Fleet, Limits
from heddle.extensions.ray.routing.published import PublishedError, read

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("ray.serve")

_MOST_NOTED = 10_000  # requests that are on their way to a replica


class Exchange(Protocol):
    """What the router reads of the first argument of a call.

    Attributes:
        key: of `blocks.pack`. b"": not known.
        model, adapter: names; "": what replicas have anyway.
        sender: whose request it is, for fairness.
        avoid: `ReplicaID.unique_id` of replicas that must not get it.
    """

    key: bytes
    model: str
    adapter: str
    sender: str
    avoid: tuple[str, ...]


class HeddleRouter(RequestRouter):  # type: ignore[misc] # Ray may be missing where mypy runs
    """Sends a request to the replica with the longest prefix, bounded by queue time."""

    def initialize_state(self, *, places: int = 0, **limits: Any) -> None:
        """Start with an empty fleet.

        Args:
            places: how many places of each replica no request takes.
            limits: fields of `fleet.Limits`, from `request_router_kwargs`.
        """
        self._places = places
        self._fleet = Fleet(Limits(**limits))
        self._by_name: dict[str, RunningReplica] = {}
        self._noted: OrderedDict[str, str] = OrderedDict()  # the replica of a request's id
        self._deaf: set[str] = set()  # replicas whose publications are wrong: logged once

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take Ray's list of running replicas, and what they have published."""
        self._by_name = {replica.replica_id.unique_id: replica for replica in replicas}
        self._fleet.update(self._by_name)
        for name, replica in self._by_name.items():
            self._hear(name, replica.routing_stats)
        self._deaf &= self._by_name.keys()
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica before Ray's next list."""
        self._by_name.pop(replica_id.unique_id, None)
        self._fleet.remove(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas for a request, each a rank of its own: Ray tries the ranks in turn.

        If there is none now, the request waits. If it has no valid key, it fails.
        """
        if pending_request is None:
            return [list(candidate_replicas)]
        pending_request.routing_context.should_backoff = True  # else Ray tries again at once
        now = time.time()
        try:
            ask = _ask(pending_request)
            choice = self._choice(ask, now)
        except NoReplicaError:
            return []  # Ray asks again, and the ingress knows for how long
        except HeddleError as error:
            return self._fail(pending_request, error, candidate_replicas)
        self._note(pending_request, ask, choice, now)
        names = (choice.name, *choice.others)
        found = [self._by_name[name] for name in names if name in self._by_name]
        return [[_WithoutPlaces(replica, self._places)] for replica in found]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Note the replica that has accepted a request, if the first choice refused it."""
        name = replica_id.unique_id
        if self._noted.pop(pending_request.metadata.internal_request_id, name) != name:
            ask = _ask(pending_request)
            self._fleet.sent(name, ask.key, time.time(), client=ask.client)

    def _choice(self, ask: Ask, now: float) -> Choice:
        """The replica for a request. One that has failed it is better than none.

        Raises:
            NoReplicaError: there is none.
        """
        if not self._fleet.knows(ask.model):
            ask = replace(ask, model="")  # an alias, or a name that the replica refuses
        try:
            return choose(ask, self._fleet, now)
        except NoReplicaError:
            if not ask.avoid:
                raise
            return choose(replace(ask, avoid=()), self._fleet, now)

    def _hear(self, name: str, stats: dict[str, Any]) -> None:
        if not stats:
            return
        try:
            self._fleet.hear(name, read(stats), time.time())
        except PublishedError as error:
            if name not in self._deaf:
                logger.warning("Replica %s: %s", name, error)
            self._deaf.add(name)

    def _note(self, pending: PendingRequest, ask: Ask, first: Choice, now: float) -> None:
        """Count the request as sent: others are chosen for before the replica has accepted it."""
        request = pending.metadata.internal_request_id
        if self._noted.get(request) == first.name:
            return  # Ray asks again until a replica accepts
        self._noted[request] = first.name
        if len(self._noted) > _MOST_NOTED:
            self._noted.popitem(last=False)
        self._fleet.sent(
            first.name, ask.key, now, held=first.held, client=ask.client, delay=first.delay
        )

    def _fail(
        self, pending: PendingRequest, error: HeddleError, replicas: Sequence[RunningReplica]
    ) -> list[list[RunningReplica]]:
        """Fail the request. An error that is raised here would leave it waiting for ever."""
        if not pending.future.done():
            pending.future.set_exception(error)
        self._remove_pending_request_from_indices(pending)
        return [list(replicas[:1])]  # Ray sees that the request is done, and stops


class _WithoutPlaces:
    """A replica as Ray sees it, with room for fewer requests."""

    def __init__(self, replica: RunningReplica, places: int) -> None:
        self._replica = replica
        self.max_ongoing_requests = replica.max_ongoing_requests - places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)


def _ask(pending: PendingRequest) -> Ask:
    """What the decision needs of Ray's request.

    Raises:
        InvalidRequestError: its key is none.
    """
    exchange: Any = pending.args[0] if pending.args else next(iter(pending.kwargs.values()), None)
    return Ask(
        key=unpack(getattr(exchange, "key", b"")),
        model=getattr(exchange, "model", ""),
        adapter=getattr(exchange, "adapter", ""),
        client=getattr(exchange, "sender", ""),
        avoid=tuple(getattr(exchange, "avoid", ())),
    )
