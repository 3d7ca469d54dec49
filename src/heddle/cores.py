"""The processors on which threads compute by default: which there are, and which are left out.

The system numbers *processors*. A core with hyper-threads is two processors or more.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from heddle.cgroups import cpu_quota, kernel_number, kernel_text
from heddle.sizes import counted

_DEVICES = Path("/sys/devices")
_sysctl = getattr(ctypes.CDLL(None), "sysctlbyname", None)  # macOS has it, Linux does not


@dataclass(frozen=True, slots=True)
class Cores:
    """Processors to compute on, one thread each.

    Attributes:
        numbers: the numbers that the system gives these processors. On a system without affinity,
            such as macOS, only how many there are has a meaning.
        processors: on how many processors the system lets this process run.
        left_out: why `numbers` are fewer, a phrase for each reason.
    """

    numbers: tuple[int, ...]
    processors: int
    left_out: tuple[str, ...]

    @property
    def note(self) -> str:
        """What to write behind a count, such as ` (of 32 processors: hyper-threads left out)`.

        It is empty if nothing is left out.
        """
        if not self.left_out:
            return ""
        return f" (of {counted(self.processors, 'processor')}: {', '.join(self.left_out)})"


def usable_cores() -> int:
    """How many threads compute by default, at least one."""
    return len(choose_cores().numbers)


def choose_cores() -> Cores:
    """The processors on which threads compute by default."""
    numbers = allowed = _allowed()
    choices = [
        ("efficiency cores left out", _performance_cores),
        ("hyper-threads left out", _one_per_core),
    ]
    if (quota := cpu_quota()) is not None:
        choices.append((f"CPU quota of {round(quota, 2):g}", partial(_within, quota)))
    left_out = []
    for reason, choose in choices:
        chosen = choose(numbers)
        if len(chosen) < len(numbers):
            left_out.append(reason)
        numbers = chosen
    return Cores(tuple(numbers), len(allowed), tuple(left_out))


def _allowed() -> list[int]:
    """The processors on which the system lets this process run; all if it has no such limit."""
    if hasattr(os, "sched_getaffinity"):  # Linux has it, macOS does not
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _performance_cores(numbers: list[int]) -> list[int]:
    """The processors without those of efficiency cores; all if there are no others.

    The threads share the items of an instruction, and wait for the last item of it. On a slow core
    it takes longer, so these cores add little.
    """
    numbers = numbers[: _system_count("hw.perflevel0.logicalcpu")]
    ranges = _ranges(kernel_text(_DEVICES / "cpu_core" / "cpus"))  # hybrid processors of Intel
    numbers = [number for number in numbers if _is_in(number, ranges)] or numbers
    return _large_cores(numbers)


def _large_cores(numbers: list[int]) -> list[int]:
    """The processors with at least half of the largest capacity, or with an unknown capacity.

    Small cores of ARM have less than half. Cores of middle size mostly have more, and must stay:
    one large core is often beside three of them, and would be the only core that computes.
    """
    capacities = [kernel_number(_text_of(number, "cpu_capacity")) for number in numbers]
    half = max((capacity or 0 for capacity in capacities), default=0) / 2
    both = zip(numbers, capacities, strict=True)
    return [number for number, capacity in both if capacity is None or capacity >= half]


def _one_per_core(numbers: list[int]) -> list[int]:
    """The first processor of each core.

    Hyper-threads of a core share its multipliers and caches, and one thread keeps them busy.
    """
    numbers = numbers[: _system_count("hw.perflevel0.physicalcpu")]
    first: dict[int, int] = {}
    for number in numbers:
        siblings = _ranges(_text_of(number, "topology/thread_siblings_list"))
        core = min(part.start for part in siblings) if _is_in(number, siblings) else number
        first.setdefault(core, number)
    return list(first.values())


def _within(quota: float, numbers: list[int]) -> list[int]:
    """As many processors as a quota pays for, rounded down.

    A group that has used up its quota stands still for the rest of the period, up to 100 ms: all
    threads of it, and so all streams. The part of a processor that remains is for the event loop.
    """
    return numbers[: max(1, int(quota))]


def _text_of(number: int, name: str) -> str:
    """The text of a file about a processor; empty if there is none."""
    return kernel_text(_DEVICES / "system" / "cpu" / f"cpu{number}" / name)


def _ranges(text: str) -> list[range]:
    """The ranges of a list such as `0-3,8`; none if the text is something else."""
    try:
        bounds = [part.partition("-") for part in text.split(",")]
        return [range(int(first), int(last or first) + 1) for first, _, last in bounds]
    except ValueError:
        return []


def _is_in(number: int, ranges: list[range]) -> bool:
    return any(number in part for part in ranges)


def _system_count(name: str) -> int | None:
    """The count that macOS has under a name; None if it has none, and on other systems."""
    if _sysctl is None:
        return None
    count, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    old = ctypes.byref(count), ctypes.byref(size)
    failed = _sysctl(name.encode(), *old, None, ctypes.c_size_t(0))
    return count.value if not failed and count.value > 0 else None
