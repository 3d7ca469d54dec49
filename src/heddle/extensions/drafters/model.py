"""Guesses from a small model with the same vocabulary."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from heddle.errors import ConfigError
from heddle.extensions.drafters.executor_drafter import ExecutorDrafter, Mirror, binding_of
from heddle.extensions.drafters.settings import DrafterSettings
from heddle.loading.load import load_model, same_vocabulary
from heddle.step import Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from heddle.config import EngineConfig
    from heddle.loading.loaded_model import LoadedModel
    from heddle.scheduler.sequence import Sequence

_log = logging.getLogger(__name__)

_UNFIT = "which has another vocabulary or is of a kind that cannot guess"

_CATCH_UP = 64
"""Most tokens of a sequence that the small model computes before one step of the large model."""


@dataclass(slots=True, eq=False)
class _Mirror(Mirror):
    """One sequence in the small model.

    Attributes:
        computed: tokens whose keys and values are in the pages.
    """

    computed: list[int] = field(default_factory=list)

    def keep_common(self) -> None:
        """Forget the computed tokens from the first wrong guess on.

        At least the newest token is computed again, because the first guess follows it.
        """
        tokens, computed = self.sequence.tokens, self.computed
        most = min(len(computed), len(tokens) - 1)
        count = min(self.total, most)  # the guesses begin at `total`
        while count < most and computed[count] == tokens[count]:
            count += 1
        del computed[count:]


class DraftModel(ExecutorDrafter[_Mirror]):
    """A small model that guesses."""

    name = "model"
    label = "the draft model"

    def _mirror(self, sequence: Sequence) -> _Mirror:
        return _Mirror(sequence)

    def _forget(self, mirror: _Mirror) -> None:
        mirror.computed = []

    def _rewind(self, mirror: _Mirror) -> None:
        mirror.keep_common()
        self._pages.shrink(mirror.table, len(mirror.computed))

    def _catch_up(self, mirror: _Mirror) -> bool:
        tokens, start = mirror.sequence.tokens, len(mirror.computed)
        if len(tokens) - start <= _CATCH_UP:
            return True
        part = tokens[start : start + _CATCH_UP]
        if self._pages.grow(mirror.table, start + len(part)):
            self._run((binding_of(mirror),), (self._part(mirror, start, part, sample=False),))
            mirror.computed += part
        return False

    def _grow(self, mirror: _Mirror) -> bool:
        return self._pages.grow(mirror.table, mirror.total + len(mirror.guesses))

    def _chunk(self, mirror: _Mirror) -> Chunk:
        start = len(mirror.computed)
        part = [*mirror.sequence.tokens, *mirror.guesses][start:]
        if self._pages.has_windows:  # wrong guesses are computed again: keep what they see
            first = min(start, mirror.total - 1)
            self._pages.give_back(mirror.table, mirror.computed, first)
        mirror.computed += part
        return self._part(mirror, start, part, sample=True)

    def _part(self, mirror: _Mirror, start: int, part: Many[int], *, sample: bool) -> Chunk:
        table = mirror.table
        return Chunk(mirror.slot, start, part, table.pages, sample, windows=table.windows)


def batch_drafter_of(model: LoadedModel, config: EngineConfig) -> DraftModel | None:
    """The model of `--draft`, ready to guess; None without it.

    If `draft_required` is off, also None if it does not fit the model; the log says so.

    Raises:
        ConfigError: its vocabulary is another one, or it generates no text.
        HeddleError: it cannot be loaded; see `load_model`.
    """
    settings = config.of(DrafterSettings)
    if not settings.draft:
        return None
    # The model has left a part of the KV cache; see `share.py`.
    rest = config.kv_cache and max(1, config.kv_cache - model.executor.memory.bytes)
    config = replace(config.for_draft_model(), kv_cache=rest, speculation="off")
    small = load_model(settings.draft, config)
    same = same_vocabulary(small.tokenizer, model.tokenizer)
    if not same or not small.shape.causal or small.executor.memory.snapshot_bytes:
        small.close()
        name = model.info.id
        if not settings.draft_required:
            _log.info("%s runs without the draft model %s, %s", name, settings.draft, _UNFIT)
            return None
        raise ConfigError(
            f"the draft model {settings.draft} does not fit {name}, {_UNFIT}. Name a smaller"
            " model of the same family",
            param="draft",
        )
    return DraftModel(small.executor, config.slots)
