"""From a checked request body to what the engine takes: prompts as token ids, sampling parameters.

One choice of the answer is one request to the engine. Choices of one prompt lie side by side, as
in OpenAI's API: `n` of the first prompt, then `n` of the second.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.server.body import LARGE
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.engine.loading import LoadedModel
    from heddle.server.schemas import ChatRequest, CompletionRequest, GenerationRequest, Message
    from heddle.text.tokenizer import Tokenizer

T = TypeVar("T")

DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions when it is left out, as in OpenAI's API. A chat ends by itself;
a completion of plain text mostly does not."""

_MESSAGE_COST = 200
"""Rendering one message takes about as long as tokenising this many characters."""

_SEEDS = 2**64

_SAMPLING_FIELDS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
    "cache_salt",
)
"""Fields that go to `SamplingParams` under their own names."""


async def chat_prompt(messages: Sequence[Message], model: LoadedModel) -> list[int]:
    """Token ids of a conversation, up to where the assistant's answer begins.

    Raises:
        InvalidRequestError: the model has no chat template, or its template refuses the messages.
    """
    spoken = [_for_template(message) for message in messages]
    size = sum(len(message["content"]) + _MESSAGE_COST for message in spoken)
    return await _sized(size, partial(model.chat_prompt, spoken))


def prompts_of(body: CompletionRequest) -> list[str] | list[list[int]]:
    """The prompts of a completion request, which may be one or several."""
    prompt = body.prompt
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return cast("list[str] | list[list[int]]", [prompt] if one else prompt)


async def tokenized(prompts: list[str] | list[list[int]], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each prompt."""

    def encode() -> list[list[int]]:
        return [tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]

    return await _sized(sum(map(len, prompts)), encode)


async def _sized(size: int, work: Callable[[], T]) -> T:
    return work() if size < LARGE else await asyncio.to_thread(work)


def chat_params(body: ChatRequest) -> SamplingParams:
    """Sampling parameters of a chat request.

    Raises:
        InvalidRequestError: a value is out of range, or two fields contradict each other.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError(
            f"top_logprobs needs logprobs to be true, got {body.logprobs!r}", param="top_logprobs"
        )
    fields = _common(body)
    longest = body.max_completion_tokens
    if longest is not None:
        if body.max_tokens not in (None, longest):
            raise InvalidRequestError(
                f"max_tokens ({body.max_tokens}) and max_completion_tokens ({longest}) differ;"
                " send one of them",
                param="max_completion_tokens",
            )
        fields["max_tokens"] = longest
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    return SamplingParams(**fields)


def completion_params(body: CompletionRequest) -> SamplingParams:
    """Sampling parameters of a completion request.

    Raises:
        InvalidRequestError: a value is out of range.
        UnsupportedParameterError: `best_of` asks for more than `n` choices.
    """
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedParameterError(
            f"best_of is supported only where it equals n ({body.n or 1}), got {body.best_of}",
            param="best_of",
        )
    fields = {"max_tokens": DEFAULT_COMPLETION_TOKENS} | _common(body)
    return SamplingParams(**fields, logprobs=body.logprobs)


def choices(
    prompts: Sequence[Sequence[int]], params: SamplingParams, n: int
) -> list[tuple[Sequence[int], SamplingParams]]:
    """`n` choices per prompt. Choice i of a prompt draws with `seed + i`, so that they differ."""
    variants = [params]
    for index in range(1, n):
        seed = None if params.seed is None else params.seed + index
        # Seeds have 64 bits: after the last comes the first.
        wrapped = seed - _SEEDS if seed is not None and seed >= _SEEDS else seed
        variants.append(replace(params, seed=wrapped))
    return [(prompt, variant) for prompt in prompts for variant in variants]


def _for_template(message: Message) -> dict[str, str]:
    """The message as chat templates expect it: content one string, absent fields absent."""
    content = message.content
    if not isinstance(content, str):
        content = "".join(part.text for part in content)
    fields = {"role": message.role, "content": content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _common(body: GenerationRequest) -> dict[str, Any]:
    """Keywords of `SamplingParams` that both endpoints have, without those left out."""
    fields = {
        name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None
    }
    if body.stop is not None:
        fields["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.logit_bias is not None:
        fields["logit_bias"] = _logit_bias(body.logit_bias)
    return fields


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    for key in bias:
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise InvalidRequestError(
                f"logit_bias keys must be token ids, got {key!r}", param="logit_bias"
            )
    return {int(key): value for key, value in bias.items()}
