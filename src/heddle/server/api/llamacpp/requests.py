"""Translates fields that `/completion` and `/infill` share into requests and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.server.api.llamacpp.settings import RANDOM_SEED, generation_settings
from heddle.server.api.llamacpp.writer import NativeOptions, NativeWriter
from heddle.server.generate.constraints import generation_grammar
from heddle.server.generate.parameters import agreed, sampling_params
from heddle.server.generate.request import GenerationRequest
from heddle.server.generate.tools import NO_TOOLS, close_schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.server.api.llamacpp.fields import NativeFields
    from heddle.server.generate.service import Served
    from heddle.types import SamplingParams


def native_params(body: NativeFields, served: Served) -> SamplingParams:
    """The sampling parameters of a body.

    Raises:
        InvalidRequestError: a value cannot be served.
    """
    random = getattr(body, "seed", None) in (-1, RANDOM_SEED)
    params = sampling_params(
        body, served, logprobs=body.n_probs or None, grammar=generation_grammar(body)
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
    prompts: Sequence[Sequence[int]],
    *,
    truncated: bool = False,
) -> tuple[GenerationRequest, NativeWriter]:
    """The request of a body and the writer of its answer.

    `truncated` says whether the prompts lack a part of the body.
    """
    n, model = choices_of(body), served.engine.model
    request = GenerationRequest(served.name, prompts, params, n, bool(body.stream))
    options = NativeOptions(
        prompts,
        n,
        generation_settings(params, served.engine.context) | {"stream": request.stream},
        body.response_fields or (),
        probabilities=params.logprobs is not None,
        tokens=bool(body.return_tokens),
        progress=bool(body.return_progress),
        truncated=truncated,
    )
    return request, NativeWriter(served.name, model.tokenizer, options)
