"""Token rules: the sampling parameters of a request, translated to tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.sampling_params import Stage
from heddle.step import TokenRules

if TYPE_CHECKING:
    from heddle.sampling_params import SamplingParams
    from heddle.text.tokenizer.tokenizer import Tokenizer


def token_rules(params: SamplingParams, tokenizer: Tokenizer) -> TokenRules:
    """The token rules of one request."""
    unused = (id for id in tokenizer.unused if id not in params.logit_bias)
    excluded = (id for id, bias in params.logit_bias.items() if bias == -math.inf)
    ends = {*tokenizer.eos_ids, *params.stop_token_ids}
    return TokenRules(
        tuple(sorted(ends)) if params.min_tokens else (),
        tokenizer.spellings(params.bad_words) if params.bad_words else (),
        tokenizer.breakers(params.dry_sequence_breakers) if params.dry_multiplier else None,
        forbidden=(*unused, *excluded),
        pieces=tokenizer.pieces if Stage.INFILL in params.samplers else None,
    )
