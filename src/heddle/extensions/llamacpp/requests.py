"""Translates fields that `/completion` and `/infill` share into requests and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError
from heddle.extensions.llamacpp.generation_settings import RANDOM_SEED, generation_settings
from heddle.extensions.llamacpp.writer import NativeOptions, NativeWriter
from heddle.parameters import MAX_TOP_LOGPROBS
from heddle.server.generate.constraints import generation_grammar
from heddle.server.generate.parameters import agreed, sampling_params
from heddle.server.generate.request import GenerationRequest, tokens_in
from heddle.server.generate.tools import NO_TOOLS, close_schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.extensions.llamacpp.fields import NativeFields
    from heddle.pictures import Laid
    from heddle.sampling_params import SamplingParams
    from heddle.server.generate.service import Served

_MOST_PROBABILITIES = 1 << 20
"""Probabilities in an answer that is not a stream: about 100 MB."""


def native_params(body: NativeFields, served: Served) -> SamplingParams:
    """The sampling parameters of a body.

    Raises:
        InvalidRequestError: a value cannot be served.
    """
    random = getattr(body, "seed", None) in (-1, RANDOM_SEED)
    params = sampling_params(
        body,
        served,
        logprobs=body.n_probs or None,
        post_sampling_probs=bool(body.post_sampling_probs),
        grammar=generation_grammar(body),
    )
    params, _ = close_schemas(params, NO_TOOLS, body.open_schemas, served)
    return params.with_seed(None) if random else params


def choices_of(body: NativeFields) -> int:
    """The number of choices for each prompt, under either name.

    Raises:
        InvalidRequestError: the two fields differ.
    """
    return agreed(body, "n", "n_cmpl") or 1


def native_answer(
    body: NativeFields,
    served: Served,
    params: SamplingParams,
    prompts: Sequence[Sequence[int] | Laid],
    *,
    truncated: bool = False,
) -> tuple[GenerationRequest, NativeWriter]:
    """The request of a body and the writer of its answer.

    `truncated` says whether the prompts lack a part of the body.

    Raises:
        InvalidRequestError: the answer would hold too many probabilities.
    """
    n, model = choices_of(body), served.engine.model
    tokens = [tokens_in(prompt) for prompt in prompts]
    _check_probabilities(params, n, tokens, served, stream=bool(body.stream))
    request = GenerationRequest(served.name, prompts, params, n, bool(body.stream))
    options = NativeOptions(
        tokens,
        n,
        generation_settings(params, served.engine.context) | {"stream": request.stream},
        body.response_fields or (),
        probabilities=params.logprobs is not None,
        after_samplers=params.post_sampling_probs,
        tokens=bool(body.return_tokens),
        progress=bool(body.return_progress),
        truncated=truncated,
    )
    return request, NativeWriter(served.name, model.tokenizer, options)


def _check_probabilities(
    params: SamplingParams,
    n: int,
    prompts: Sequence[Sequence[int]],
    served: Served,
    *,
    stream: bool,
) -> None:
    """Refuse an answer whose probabilities would take too much memory. A stream keeps none.

    Raises:
        InvalidRequestError: there would be too many.
    """
    each = params.logprobs or 0
    if stream or each <= MAX_TOP_LOGPROBS:
        return
    room = [served.engine.context - len(prompt) for prompt in prompts]
    tokens = n * sum(min(one, params.max_tokens or one) for one in room)
    if each * tokens > _MOST_PROBABILITIES:
        raise InvalidRequestError(
            f"n_probs {each} for up to {tokens:,} tokens are {each * tokens:,} probabilities; an"
            f" answer holds {_MOST_PROBABILITIES:,}. Lower n_probs or n_predict, or stream the"
            " answer",
            param="n_probs",
        )
