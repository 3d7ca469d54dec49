"""The drafters of a model, by name."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.config import EngineConfig
    from heddle.drafting.follower import Follower
    from heddle.engine.loading import LoadedModel
    from heddle.scheduler.guessing import Drafter
    from heddle.scheduler.sequence import Sequence

_log = logging.getLogger(__name__)

_UNFIT = "which has another vocabulary or is of a kind that cannot guess"


def drafters(draft: Follower[Any] | None) -> Mapping[str, Callable[[Sequence], Drafter | None]]:
    """Functions that make a drafter for a sequence; None: the sequence can have no such drafter.

    `draft` is the small model that guesses for this one, or its own prediction head; None: neither.

    The imports are here because they load the native module.
    """
    from heddle.drafting.engram import EngramDrafter
    from heddle.drafting.lookup import LookupDrafter

    made: dict[str, Callable[[Sequence], Drafter | None]] = {
        "lookup": lambda _: LookupDrafter(),
        "engram": EngramDrafter.of,
    }
    if draft is not None:
        made[draft.name] = draft.drafter
    return made


def draft_model(model: LoadedModel, config: EngineConfig) -> Follower[Any] | None:
    """The model of `--draft`, else the model's own head, ready to guess; None without either.

    If `draft_required` is off, also None if it does not fit the model; the log says so.

    Raises:
        ConfigError: its vocabulary is another one, or it generates no text.
        HeddleError: it cannot be loaded; see `load_model`.
    """
    from heddle.drafting.head import HeadDrafter
    from heddle.drafting.model import DraftModel

    head = model.executor.head
    if not config.draft:
        return None if head is None else HeadDrafter(head, config.slots)
    from heddle.engine.loading import load_model, same_vocabulary

    # The model has left a part of the KV cache; see `load_model`.
    rest = config.kv_cache and max(1, config.kv_cache - model.executor.memory.bytes)
    config = replace(config, tensor_parallel=1, devices="")
    small = load_model(config.draft, replace(config, draft="", kv_cache=rest, speculation="off"))
    same = same_vocabulary(small.tokenizer, model.tokenizer)
    if not same or not small.shape.causal or small.executor.memory.snapshot_bytes:
        small.close()
        if not config.draft_required:
            _log.info("%s runs without the draft model %s, %s", model.info.id, config.draft, _UNFIT)
            return None
        raise ConfigError(
            f"the draft model {config.draft} does not fit {model.info.id}, {_UNFIT}. Name a smaller"
            " model of the same family",
            param="draft",
        )
    return DraftModel(small.executor, config.slots)
