"""The process in which a server quantises a model.

The first line of its input says what to do. Then it writes a line of JSON for each report, and the
last one has the outcome. It gives way to the server's streams, and it ends when its input ends, so
also when the server is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_NICENESS = 19
_SECONDS = 0.1
"""Shortest time between two reports."""
_OOM_SCORE = Path("/proc/self/oom_score_adj")


def main() -> None:
    """Quantise the model that the first line of input names."""
    give_way()
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, args=(asked["target"],), daemon=True).start()
    from heddle.errors import HeddleError

    try:
        outcome = quantise(**asked)
    except HeddleError as error:
        outcome = {"error": [type(error).__name__, error.message, error.param]}
    except Exception as error:
        reason = f"the model was not quantised: {type(error).__name__}: {error}"
        outcome = {"error": [HeddleError.__name__, reason, None]}
    _say(outcome)


def give_way() -> None:
    """Let all other threads of the machine compute first, and let the system kill this process
    first when memory runs out."""
    with suppress(OSError):
        os.nice(_NICENESS)
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with suppress(OSError):
            _OOM_SCORE.write_text("1000")


def _end_with_input(target: str) -> None:
    """Wait for the end of the input. Then delete the folder of `target`, and end this process."""
    while os.read(0, 1):
        pass
    shutil.rmtree(Path(target).parent, ignore_errors=True)
    os._exit(1)


def quantise(
    source: str, target: str, kind: str, threads: int, cache: str, endpoint: str
) -> dict[str, Any]:
    """Quantise a model that is on this machine, and report. Returns the outcome.

    Raises:
        HeddleError: the model is not here, or cannot be quantised.
    """
    from heddle.extensions.quantise.quantising import quantise_file
    from heddle.hub_place import HubPlace
    from heddle.loading.find import find_model
    from heddle.weights.mix import Mix

    place = HubPlace(Path(cache), endpoint, offline=True)
    path = find_model(source, place=place).path
    mix = Mix.named(kind)
    written = quantise_file(path, Path(target), mix, progress=_Said(), threads=threads)
    return {"bytes": Path(target).stat().st_size, "kept": written.kept}


class _Said:
    """Reports progress to the server. Implements `heddle.weights.progress.Progress`."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._said_at = 0.0

    def note(self, text: str) -> None:
        """See `Progress`."""

    def start(
        self, label: str, total: int | None, *, quick: bool = False, unit: str = "bytes"
    ) -> None:
        """See `Progress`."""
        self._total = total

    def update(self, done: int) -> None:
        """See `Progress`."""
        if time.monotonic() >= self._said_at + _SECONDS:
            self._said_at = time.monotonic()
            _say({"total": self._total, "completed": done})

    def part(self, name: str, done: int, total: int) -> None:
        """See `Progress`."""

    def finish(self) -> None:
        """See `Progress`."""


def _say(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
