"""The warm-up of an executor is a part of the load that shows its own progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from heddle.loading.load import _warm_up
from heddle.weights.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Callable


class Shown(Silent):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def start(self, label: str, total: int | None, **how: Any) -> None:
        self.seen.append((label, total))

    def update(self, done: int) -> None:
        self.seen.append(done)

    def finish(self) -> None:
        self.seen.append("finish")


class Cold:
    def __init__(self, parts: int, *, fails: bool = False) -> None:
        self.warm_ups = parts
        self.fails = fails
        self.is_closed = False

    def warm_up(self, done: Callable[[int], None]) -> None:
        for part in range(1, self.warm_ups + 1):
            done(part)
        if self.fails:
            raise RuntimeError("no memory")

    def close(self) -> None:
        self.is_closed = True


def test_the_parts_are_shown() -> None:
    shown = Shown()
    _warm_up("tiny", Cold(2), shown)
    assert shown.seen == ["finish", ("warming up tiny", 2), 1, 2]


@pytest.mark.parametrize("executor", [Cold(0), object()])
def test_without_parts_nothing_is_shown(executor: Any) -> None:
    shown = Shown()
    _warm_up("tiny", executor, shown)
    assert shown.seen == []


def test_an_executor_that_fails_is_closed() -> None:
    executor = Cold(1, fails=True)
    with pytest.raises(RuntimeError, match="no memory"):
        _warm_up("tiny", executor, Silent())
    assert executor.is_closed
