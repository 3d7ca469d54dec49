"""Work that all ranks of a model complete, or none, because one of them found no memory.

A rank that finds no memory still takes part in all exchanges of the work, with zeros, so that no
other rank waits for it. One exchange more tells all ranks who found none.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from heddle.errors import EngineFailedError
from heddle.extensions.torch.allocation import is_out_of_memory, release
from heddle.extensions.torch.device_errors import device_errors
from heddle.extensions.torch.staging import Fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from heddle.extensions.torch.collective import Collective

T = TypeVar("T")

Value = tuple[tuple[int, ...], torch.dtype]
"""The shape and the type of what each rank gives to an exchange."""


class Exchanges:
    """The exchanges of a rank with the others in one piece of work; a `Collective`."""

    def __init__(
        self,
        collective: Collective,
        device: torch.device,
        expected: Iterable[Value],
        replay: Callable[[], None] | None = None,
    ) -> None:
        """`expected` has the values of all exchanges in order. It follows from the plan alone.

        `replay` repeats a recording after them, whose exchanges are its own, with padding only.
        """
        self._collective = collective
        self._replay = replay
        self._device = device
        self._expected = iter(expected)
        self._next = next(self._expected, None)

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The values x of all ranks; see `Collective.gather`."""
        assert self._next == (tuple(x.shape), x.dtype), "the other ranks expect this value"
        found = self._collective.gather(x)
        self._next = next(self._expected, None)  # an allocation that fails above is before it
        return found

    def note_replay(self) -> None:
        """The recording was repeated."""
        self._replay = None

    def take_part(self) -> None:
        """Give zeros to all exchanges that are left."""
        left = [] if self._next is None else [self._next]
        for shape, dtype in chain(left, self._expected):
            self._collective.gather(torch.zeros(shape, dtype=dtype, device=self._device))
        self._next = None
        if self._replay is not None:
            self._replay()
            self._replay = None


class Attempt(Generic[T]):
    """The result of a piece of work, and which ranks failed.

    Attributes:
        found: result of the work of this rank; None if the work failed.
        problem: why it failed.
    """

    def __init__(self, found: T | None, lacks: Fetched | None, problem: str = "") -> None:
        """`lacks` has, for each rank, whether it failed; None: there is one rank."""
        self.found = found
        self.problem = problem
        self._lacks = lacks

    @property
    def lacking(self) -> list[int]:
        """The ranks that failed. Waits for the device."""
        lacks = [] if self._lacks is None else self._lacks.read().tolist()
        return [rank for rank, lack in enumerate(lacks) if lack]


class Agreement:
    """Lets all ranks know whether each of them found the memory for a piece of work."""

    def __init__(self, collective: Collective, device: torch.device) -> None:
        self._collective = collective
        self._device = device
        self._answers = torch.arange(2, device=device)  # made now: there may be no memory later

    def attempt(
        self,
        exchanges: Exchanges,
        work: Callable[[], T],
        may_fail: Callable[[Exception], bool] = is_out_of_memory,
    ) -> Attempt[T]:
        """Do the work, which does all of the exchanges. This does not wait for the device.

        `may_fail` says of which errors the other ranks shall hear.

        Raises:
            EngineFailedError: this rank has no memory even for the exchanges.
            RuntimeError: the work failed for another reason.
        """
        found: T | None = None
        lacks, problem = False, ""
        try:
            found = work()
        except device_errors() as error:
            if not may_fail(error):
                raise
            lacks, problem = True, str(error)
        # The error is gone here, and with it the tensors of the functions that it ended.
        try:
            if lacks:
                release(self._device)
                exchanges.take_part()
            answers = self._collective.gather(self._answers[int(lacks) :][:1])
            return Attempt(found, Fetched(torch.cat(answers)), problem)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise EngineFailedError(
                f"device {self._device} has no memory for what its rank exchanges with the others:"
                f" {error}"
            ) from error
