"""Counters of engines that are gone. A model's counters go on when it is loaded again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.engine import Engine
    from heddle.extensions.metrics.table import Value
    from heddle.hosting.registry import Registry


class PastCounters:
    """Sums of the counters of a registry's former engines. Any thread may call the methods."""

    def __init__(
        self, models: Registry, read: Callable[[str, Engine], Mapping[str, Value]]
    ) -> None:
        """`read` returns an engine's counters by name. Its first argument is the model's name."""
        self._models = models
        self._read = read
        self._lock = threading.Lock()
        self._sums: dict[str, dict[str, Value]] = {}
        self._counted: WeakSet[Engine] = WeakSet()
        models.on_unloaded(self._count)
        models.on_loaded(lambda _model, _engine: self._forget())

    def _count(self, model: str, engine: Engine) -> None:
        with self._lock:
            sums = self._sums.setdefault(model, {})
            for name, value in self._read(model, engine).items():
                sums[name] = added(value, sums.get(name))
            self._counted.add(engine)

    def split(self) -> tuple[dict[str, Engine], dict[str, dict[str, Value]]]:
        """The loaded engines that are not in the sums, and the sums, by model."""
        engines = self._models.engines
        self._forget()
        with self._lock:
            live = {name: one for name, one in engines.items() if one not in self._counted}
            return live, {name: dict(sums) for name, sums in self._sums.items()}

    def _forget(self) -> None:
        """Forget models that the registry has forgotten."""
        names = self._models.names
        with self._lock:
            self._sums = {name: sums for name, sums in self._sums.items() if name in names}


def added(value: Value, sum_of_past: Value | None) -> Value:
    """The sum of two values of one counter, which may have values by label."""
    if isinstance(value, Mapping):
        past = sum_of_past if isinstance(sum_of_past, Mapping) else {}
        return {key: value.get(key, 0) + past.get(key, 0) for key in {**past, **value}}
    return value + (0 if sum_of_past is None or isinstance(sum_of_past, Mapping) else sum_of_past)
