"""The parts of a warm-up, which all ranks do, or none: then all of them run without recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.torch.agreement import Agreement, Exchanges
from heddle.extensions.torch.allocation import is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from heddle.extensions.torch.agreement import Value
    from heddle.extensions.torch.collective import Collective


class Together:
    """Does work in which so many tokens are computed, and the logits of so many rows."""

    def __init__(
        self,
        collective: Collective,
        recorded: Collective,
        device: torch.device,
        expected: Callable[[int, int], Iterator[Value]],
        use: Callable[[Exchanges], None],
    ) -> None:
        """The ranks exchange by `collective`, and in recordings by `recorded`.

        A recording that fails makes NCCL's communicator unusable (pie-project/pie#499), so
        recordings have their own. NCCL asks that either all ranks record a call, or none.

        `expected` has the values that the work exchanges, by its tokens and rows. `use` takes the
        exchanges of the work before it begins.
        """
        self._collective = collective
        self._recorded = recorded
        self._device = device
        self._expected = expected
        self._use = use
        self._agreement = Agreement(collective, device)

    def compute(self, tokens: int, rows: int, work: Callable[[], None]) -> None:
        """Do work that is not to be recorded.

        Raises:
            RuntimeError: the work of a rank found no memory. All ranks raise it.
        """
        exchanges = self._begin(self._collective, tokens, rows)
        self._attempt(exchanges, work, is_out_of_memory)

    def prepare(self, tokens: int, rows: int, work: Callable[[], None]) -> None:
        """Do work that is to be recorded.

        Raises:
            RuntimeError: the work of a rank failed. All ranks raise it.
        """
        exchanges = self._begin(self._recorded, tokens, rows)
        self._attempt(exchanges, work, lambda error: True)

    def record(self, tokens: int, rows: int, work: Callable[[], None]) -> None:
        """Record work. A device that only records exchanges nothing.

        Raises: as `prepare`.
        """
        self._begin(self._recorded, tokens, rows)
        nothing = Exchanges(self._collective, self._device, ())
        self._attempt(nothing, work, lambda error: True)

    def _begin(self, collective: Collective, tokens: int, rows: int) -> Exchanges:
        exchanges = Exchanges(collective, self._device, self._expected(tokens, rows))
        self._use(exchanges)
        return exchanges

    def _attempt(
        self,
        exchanges: Exchanges,
        work: Callable[[], None],
        may_fail: Callable[[Exception], bool],
    ) -> None:
        attempt = self._agreement.attempt(exchanges, work, may_fail)
        if attempt.lacking:
            ranks = ", ".join(map(str, attempt.lacking))
            raise RuntimeError(attempt.problem or f"rank {ranks} failed")


class Alone:
    """The same for one rank."""

    def compute(self, tokens: int, rows: int, work: Callable[[], None]) -> None:
        """Do the work, with its errors. So do the other methods."""
        work()

    prepare = record = compute
