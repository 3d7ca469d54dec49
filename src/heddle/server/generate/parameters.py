"""Sampling parameters of a body, from the fields that several APIs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.errors import InvalidRequestError
from heddle.server.generate.constraints import grammar_of, response_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.server.generate.fields import GenerationFields, SamplingFields
    from heddle.types import Grammar

_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "samplers",
    "min_tokens",
    "bad_words",
    "stop_token_ids",
    "seed",
    "ignore_eos",
    "cache_salt",
)
"""Fields that go to `SamplingParams` under their own names."""


def generation_fields(body: GenerationFields) -> dict[str, Any]:
    """Keywords of `SamplingParams`: those of :func:`sampling_fields`, and `max_tokens`."""
    fields = sampling_fields(body, response_format(body.response_format))
    if body.max_tokens is not None:
        fields["max_tokens"] = body.max_tokens
    take_alias(fields, body, "max_tokens", "n_predict")
    return fields


def sampling_fields(body: SamplingFields, form: Grammar | None) -> dict[str, Any]:
    """Keywords of `SamplingParams`, without the fields that a body leaves out.

    `form` is the grammar that the endpoint's own field asks for.

    Raises:
        InvalidRequestError: two fields contradict each other.
    """
    fields = {
        name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None
    }
    if body.stop is not None:
        fields["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    take_alias(fields, body, "repetition_penalty", "repeat_penalty")
    if body.logit_bias is not None:
        fields["logit_bias"] = _logit_bias(body.logit_bias)
    fields["grammar"] = grammar_of(body, form)
    return fields


def take_alias(fields: dict[str, Any], body: SamplingFields, name: str, alias: str) -> None:
    """Take a field's value from its other name, unless the two contradict each other.

    `fields` has the field's own value, or that of another alias, if there is one.
    """
    value = getattr(body, alias)
    if value is None:
        return
    if fields.get(name) not in (None, value):
        raise InvalidRequestError(
            f"{name} ({fields[name]}) and {alias} ({value}) differ; send one of them",
            param=alias,
        )
    fields[name] = value


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    for key in bias:
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise InvalidRequestError(
                f"logit_bias keys must be token ids, got {key!r}", param="logit_bias"
            )
    return {int(key): value for key, value in bias.items()}
