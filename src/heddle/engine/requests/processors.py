"""Opens the logits processors that a request names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.doors import extensions, refer
from heddle.errors import InvalidRequestError

if TYPE_CHECKING:
    from heddle.sampling_params import SamplingParams
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.token_rules import LogitsProcessor


def processors_of(params: SamplingParams, tokenizer: Tokenizer) -> tuple[LogitsProcessor, ...]:
    """The logits processors of sampling parameters, in their order.

    Raises:
        InvalidRequestError: no extension has a processor of this name, or an option is wrong.
    """
    known = {
        name: reference
        for extension in extensions().values()
        for name, reference in extension.logits_processors.items()
    }
    for name in params.logits_processors:
        if name not in known:
            raise InvalidRequestError(
                f"there is no logits processor {name!r}; known: {', '.join(known) or 'none'}."
                " Install the package that brings it, or leave it out",
                param="logits_processors",
            )
    return tuple(
        refer(known[name])(options, tokenizer) for name, options in params.logits_processors.items()
    )
