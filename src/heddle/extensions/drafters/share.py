"""The settings of a model that leaves memory to its draft model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.executors.serving import position_elements
from heddle.extensions.drafters.settings import DrafterSettings
from heddle.hub_place import hub_place
from heddle.loading.find import find_model
from heddle.loading.load import same_vocabulary
from heddle.models.build import build, family_of
from heddle.text.tokenizer.tokenizer import Tokenizer
from heddle.weights.formats import open_checkpoint

if TYPE_CHECKING:
    from heddle.config import EngineConfig
    from heddle.weights.checkpoint import Checkpoint


def share(checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig) -> EngineConfig:
    """The settings of a model that is loaded beside its draft model.

    Its own prediction head is not loaded. It leaves a part of `kv_cache`, so that both hold as many
    tokens.
    """
    draft = config.of(DrafterSettings).draft
    if not draft:
        return config
    config = replace(config, speculation="off")  # then no device loads the head
    if not config.kv_cache:
        return config
    found = find_model(draft, place=hub_place(config))
    with open_checkpoint(found.path, found.base, family_of) as small:
        if not same_vocabulary(Tokenizer.of(small.tokenizer()), tokenizer):
            return config  # `batch_drafter_of` refuses the draft model, or leaves it out
        own, other = position_elements(build(checkpoint)), position_elements(build(small))
    return replace(config, kv_cache=config.kv_cache * own // max(1, own + other))
