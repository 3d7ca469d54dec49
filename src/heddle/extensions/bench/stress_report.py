"""The report of a stress run: figures, faults and a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from heddle.extensions.bench.isolation import Isolation, judge_isolation

if TYPE_CHECKING:
    from heddle.extensions.bench.stress import Stress, StressRun

GOOD, FAULTY, ISOLATION_BROKEN = 0, 1, 6
"""Exit codes of `heddle bench stress`."""


@dataclass(frozen=True, slots=True)
class StressReport:
    """All results of a stress run.

    Attributes:
        model, url: the server.
        machine: see `heddle.extensions.bench.machine.describe`.
    """

    model: str
    url: str
    machine: dict[str, Any]
    stress: Stress
    run: StressRun

    @property
    def isolation(self) -> Isolation:
        """Canaries in complete and in incomplete answers."""
        return judge_isolation(self.stress.prompts(), self.run.texts | self.run.parts, 0)

    @property
    def growth(self) -> float | None:
        """Growth of resident memory from the first half to the second, as a share."""
        _, first, second = self.run.vitals
        if first.resident is None or second.resident is None:
            return None
        return second.resident / first.resident - 1

    def faults(self) -> list[str]:
        """Everything that must not happen, a line each. Empty if all is well."""
        before, *later = self.run.vitals
        lines = list(self.run.faults)
        for half, vitals in zip(("first", "second"), later, strict=True):
            lines += [
                f"{number:,.0f} {name} more than before are held after the {half} half"
                for name, number in vitals.leaks(before).items()
            ]
        if self.growth is not None and self.growth > self.stress.growth:
            lines.append(f"resident memory grew by {self.growth:.1%} in the second half")
        lines += [f"request {index} gets another answer alone" for index in self.run.different]
        return lines

    @property
    def exit_code(self) -> int:
        """GOOD, FAULTY or ISOLATION_BROKEN."""
        if self.isolation.broken or self.run.different:
            return ISOLATION_BROKEN
        return FAULTY if self.faults() else GOOD

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON; memory in bytes, times in seconds."""
        run = self.run
        return {
            "model": self.model,
            "url": self.url,
            "machine": self.machine,
            "stress": asdict(self.stress),
            "seconds": run.seconds,
            "answered": len(run.texts) - run.late,
            "cancelled": len(run.parts),
            "too_late_to_cancel": run.late,
            "refused_as_full": run.refused,
            "malformed": {kind: dict(counts) for kind, counts in run.statuses.items()},
            "vitals": [asdict(vitals) for vitals in run.vitals],
            "memory_growth": self.growth,
            "isolation": self.isolation.as_dict(),
            "different_alone": run.different,
            "faults": self.faults(),
            "exit_code": self.exit_code,
        }
