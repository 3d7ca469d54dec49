"""The figures of this machine that decide which model fits: free memory, and its read rate."""

from dataclasses import dataclass

from heddle.cores import usable_cores
from heddle.process_memory import available_bytes

_MOST_OTHER_WORK = 0.9
"""Largest share of the machine in other programs for which the measured rate is corrected: cores
that compute for others do not read for this process."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine.

    Attributes:
        available: bytes that the process may use.
        rate: bytes that as many threads as compute by default read from memory per second
            without other programs.
        other_work: share of the machine that other programs took during the measurement.
    """

    available: int
    rate: float
    other_work: float = 0.0

    def __str__(self) -> str:
        return f"{self.available / 1e9:.0f} GB free, reads {self.rate / 1e9:.0f} GB/s"


def this_machine() -> Machine:
    """The machine that runs this process. Measuring takes 0.3 s."""
    from heddle.executors.cpu.limits import memory_rate
    from heddle.extensions.bench.other_work import OtherWork

    others = OtherWork()
    rate = memory_rate(usable_cores())
    share = others.share() or 0.0
    return Machine(available_bytes(), rate / (1 - min(share, _MOST_OTHER_WORK)), share)
