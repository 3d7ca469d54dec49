"""Requests that an engine leaves: another engine of the same model goes on with them.

An engine leaves them when it has failed, or when it stops for another engine. The tokens of a
request depend on the request alone: on its prompt, its parameters, its seed and its tokens so far.
So an engine that computes these tokens again goes on where the other one stopped, bit for bit. The
reader of its stream sees a pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.outputs import FinishReason

if TYPE_CHECKING:
    from heddle.engine.requests.request import Request
    from heddle.engine.streaming.delivery import Delivery
    from heddle.errors import HeddleError
    from heddle.loading.loaded_model import LoadedModel


@dataclass(slots=True, eq=False)
class Interrupted:
    """The requests of an engine that has ended. All their tokens are delivered.

    The engine thread makes it, and uses its delivery no more. One thread at a time may call the
    methods.

    Attributes:
        failed: ids of the requests that a failed step computed. One of them may be the cause.
    """

    failed: frozenset[int]
    _delivery: Delivery
    _bits: tuple[object, ...]
    _failure: HeddleError
    _refusal: HeddleError

    @classmethod
    def of(
        cls,
        model: LoadedModel,
        delivery: Delivery,
        failed: frozenset[int],
        failure: HeddleError,
        refusal: HeddleError,
    ) -> Interrupted:
        """The requests of `delivery`.

        `failure` is for those of the failed step, and `refusal` for all others, if they must end.
        """
        for request in delivery.requests.values():
            request.failed_steps += request.sequence.id in failed
        return cls(failed, delivery, _bits_of(model), failure, refusal)

    @property
    def count(self) -> int:
        """Number of the requests."""
        return len(self._delivery.requests)

    @property
    def longest(self) -> int:
        """Most tokens that one of the requests may have."""
        limits = (request.sequence.limit for request in self._delivery.requests.values())
        return max(limits, default=0)

    def fits(self, model: LoadedModel) -> bool:
        """Whether a model gives the requests the tokens that theirs would have given."""
        return _bits_of(model) == self._bits

    def take(self, tries: int) -> list[Request]:
        """The requests to go on with.

        Ends driven sequences, because their callers know the other engine, and the requests that
        more than `tries` failed steps have computed.
        """
        for request in list(self._delivery.requests.values()):
            if request.sequence.driven:
                self._end(request, "the caller of a driven sequence knows this engine only")
            elif request.failed_steps > tries:
                self._end(request, f"{request.failed_steps} steps with it have failed")
        self._delivery.deliver()  # wakes the event loops
        return list(self._delivery.requests.values())

    def give_up(self, why: str = "") -> None:
        """End all requests that are left. `why` says why they do not go on; empty: it is clear."""
        for request in list(self._delivery.requests.values()):
            self._end(request, why)
        self._delivery.deliver()

    def leave(self) -> None:
        """Forget the requests: another engine has them."""
        self._delivery.requests.clear()

    def _end(self, request: Request, why: str) -> None:
        error = self._failure if request.sequence.id in self.failed else self._refusal
        if why:
            error = type(error)(f"{error.message}. The request does not go on: {why}")
        self._delivery.end(request, FinishReason.ERROR, error=error)


def same_bits(one: LoadedModel, other: LoadedModel) -> bool:
    """Whether two models that this process has loaded give the same tokens."""
    return _bits_of(one) == _bits_of(other)


def _bits_of(model: LoadedModel) -> tuple[object, ...]:
    """What is equal only if two loads in one process give the same tokens: the files, and how the
    executor computes."""
    eyes = None if model.eyes is None else model.eyes.bits
    return sorted(model.info.stamps.items()), model.info.id, model.executor.page_format, eyes
