"""Collections of garbage: none during a start, and none of what the start made."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from heddle.process_memory import frozen_start, reclaim_memory

if TYPE_CHECKING:
    from collections.abc import Iterator


class Knot:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_a_start_collects_nothing_and_its_objects_stay_out_of_collections() -> None:
    with frozen_start():
        assert not gc.isenabled()
        knot = weakref.ref(Knot())
    assert gc.isenabled()
    gc.collect()
    assert knot() is not None


def test_a_start_that_fails_leaves_collections_as_they_were() -> None:
    with pytest.raises(ValueError, match="no"), frozen_start():
        raise ValueError("no")
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_reclaiming_frees_what_the_start_made_and_leaves_the_rest_frozen() -> None:
    with frozen_start():
        knot = weakref.ref(Knot())
    frozen = gc.get_freeze_count()
    reclaim_memory()
    assert knot() is None
    assert gc.get_freeze_count() > frozen // 2


def test_reclaiming_freezes_nothing_in_a_process_that_froze_nothing() -> None:
    reclaim_memory()
    assert gc.get_freeze_count() == 0
