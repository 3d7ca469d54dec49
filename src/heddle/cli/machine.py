"""What decides which model fits this machine: free memory, and how fast it is read."""

from dataclasses import dataclass

from heddle.memory import available_bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine.

    Attributes:
        available: bytes that the process may use.
        rate: bytes that all cores together read from memory per second, measured now.
        other_work: share of the machine that other programs took meanwhile, which lowers the rate.
    """

    available: int
    rate: float
    other_work: float = 0.0

    def __str__(self) -> str:
        return f"{self.available / 1e9:.0f} GB free, reads {self.rate / 1e9:.0f} GB/s"


def this_machine() -> Machine:
    """The machine that runs this process. Measuring takes 0.3 s."""
    from heddle.bench.machine import OtherWork
    from heddle.engine.machine import memory_rate

    others = OtherWork()
    rate = memory_rate()
    return Machine(available_bytes(), rate, others.share() or 0.0)
