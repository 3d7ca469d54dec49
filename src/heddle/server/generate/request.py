"""From a checked request body to what the engine takes: prompts as token ids, sampling parameters.

One choice of the answer is one request to the engine. Choices of one prompt lie side by side, as
in OpenAI's API: `n` of the first prompt, then `n` of the second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from heddle.engine.request import check_tokens
from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.server.api.openai.completion_writers import AnswerOptions
from heddle.server.api.openai.logprobs import Echo
from heddle.server.generate.chat import chat_prompt, tool_use, written
from heddle.server.generate.constraints import grammar_of, response_format
from heddle.server.generate.tools import NO_TOOLS, closing, held_to, suspects
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.server.api.llamacpp.infill import ExtraFile, InfillRequest
    from heddle.server.api.openai.schemas import (
        ChatRequest,
        CompletionRequest,
        GenerationRequest,
        SamplingRequest,
    )
    from heddle.server.generate.service import Service
    from heddle.server.generate.tools import ToolUse
    from heddle.server.http.fields import Prompt
    from heddle.text.parsing.reading import Reading
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.types import Grammar

DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions when it is left out, as in OpenAI's API. A chat ends by itself;
a completion of plain text mostly does not."""

_SEEDS = 2**64

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


@dataclass(frozen=True, slots=True)
class Job:
    """What a body asks of the engine. Holds nothing of the body itself, which may be large.

    Attributes:
        model: the name that the answer gives the model.
        prompts: token ids.
        params: for all prompts.
        n: choices to generate for each prompt.
        stream: whether the answer is to come in events.
        options: what the answer is to have in it.
        suspects: what to compile if the grammar of `params` cannot be: one of them says why.
    """

    model: str
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    n: int
    stream: bool
    options: AnswerOptions
    suspects: Sequence[Grammar] = ()


def chat_job(body: ChatRequest, service: Service) -> Job:
    """What a chat request asks for.

    Raises:
        InvalidRequestError: a value cannot be served, the model has no chat template, its template
            refuses the messages, or they are too long for the context.
    """
    model = service.model_name(body.model)
    params, n = chat_params(body), body.n or 1
    options = _options(body, params.logprobs)
    service.check_choices(1, n)
    params, use = closing(params, tool_use(body), body.open_schemas, service)
    singly = suspects(use)
    prompt, reading = chat_prompt(service.engine, written(body, use.tools), use)
    params = for_reading(params, use, reading, service)
    options = replace(options, reading=reading)
    return Job(model, [prompt], params, n, bool(body.stream), options, singly)


def completion_job(body: CompletionRequest, service: Service) -> Job:
    """What a completion request asks for.

    Raises:
        InvalidRequestError: a value cannot be served, or a prompt is too long for the context.
    """
    model = service.model_name(body.model)
    params, _ = closing(completion_params(body), NO_TOOLS, body.open_schemas, service)
    options, n = _options(body, body.logprobs), body.n or 1
    texts, of = prompts_of(body.prompt), body.best_of or n
    service.check_choices(len(texts), of)
    tokenizer = service.engine.model.tokenizer
    for text in texts:
        if not isinstance(text, str):
            check_tokens(service.engine.model, text, "prompt")
    if body.suffix:
        prompts = [tokenizer.encode_fill_in(text, body.suffix) for text in texts]
    else:
        prompts = [tokenizer.encode(text) if isinstance(text, str) else text for text in texts]
    for prompt in prompts:
        service.engine.check_length(len(prompt), output=params.max_tokens != 0)
    echo = _echoes(texts, prompts, tokenizer) if body.echo else ()
    options = replace(options, best=n if of > n else None, echo=echo)
    return Job(model, prompts, params, of, bool(body.stream), options)


def infill_job(body: InfillRequest, service: Service) -> tuple[Job, int]:
    """What a request of `/infill` asks for, and how many of its extra files found no room.

    The filling goes on until it ends by itself.

    Raises:
        InvalidRequestError: a value cannot be served, the texts are too long for the context, or
            the model has no tokens for filling in the middle.
    """
    model = service.model_name(body.model)
    fields = _generation_fields(body)
    params, _ = closing(SamplingParams(**fields), NO_TOOLS, body.open_schemas, service)
    tokenizer = service.engine.model.tokenizer
    prompt = tokenizer.encode_fill_in(body.input_prefix, body.input_suffix)
    prompt += tokenizer.encode(
        body.prompt or "", add_special=False, parse_special=False, continues=True
    )
    service.engine.check_length(len(prompt), output=params.max_tokens != 0)
    room = service.engine.context - len(prompt) - (params.max_tokens or 0)
    extra, left_out = _extra_files(body.input_extra or (), tokenizer, room)
    n = _choices_of(body)
    service.check_choices(1, n)
    job = Job(
        model, [tokenizer.put_before(prompt, extra)], params, n, bool(body.stream), AnswerOptions()
    )
    return job, left_out


def _extra_files(
    files: Sequence[ExtraFile], tokenizer: Tokenizer, room: int
) -> tuple[list[int], int]:
    """Ids of the last files that fit into `room` tokens together, and how many come before them.

    Editors send the oldest first, and more than a small context holds.
    """
    if not files:
        return [], 0
    named = [(file.filename or f"snippet{place}", file.text) for place, file in enumerate(files, 1)]
    head, *texts, tail = tokenizer.encode_files(named)
    room -= len(head) + len(tail)
    first = len(texts)
    while first > 0 and len(texts[first - 1]) <= room:
        first -= 1
        room -= len(texts[first])
    if first == len(texts):
        return [], first
    return [*head, *(id for text in texts[first:] for id in text), *tail], first


def _choices_of(body: InfillRequest) -> int:
    fields = {} if body.n is None else {"n": body.n}
    _take_alias(fields, body, "n", "n_cmpl")
    return fields.get("n", 1)


def _echoes(
    texts: Sequence[str | list[int]], prompts: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> list[Echo]:
    def text_of(prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special=False)

    # To an empty prompt the engine adds the token that begins a text.
    return [
        Echo(text_of(text), prompt[0] if prompt else tokenizer.bos_id or 0)
        for text, prompt in zip(texts, prompts, strict=True)
    ]


def prompts_of(prompt: Prompt) -> list[str] | list[list[int]]:
    """The prompts of a field that may hold one or several."""
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return cast("list[str] | list[list[int]]", [prompt] if one else prompt)


def _options(body: ChatRequest | CompletionRequest, logprobs: int | None) -> AnswerOptions:
    """What the answer is to have in it, by the fields that chats and completions share.

    Raises:
        InvalidRequestError: two fields contradict each other.
    """
    return AnswerOptions(_usage_wanted(body), logprobs, body.prompt_logprobs)


def _usage_wanted(body: GenerationRequest) -> bool:
    """Whether a stream is to end with its token counts."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequestError(
            f"stream_options needs stream to be true, got {body.stream!r}", param="stream_options"
        )
    return bool(body.stream_options.include_usage)


def chat_params(body: ChatRequest) -> SamplingParams:
    """Sampling parameters of a chat request.

    Raises:
        InvalidRequestError: a value is out of range, or two fields contradict each other.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError(
            f"top_logprobs needs logprobs to be true, got {body.logprobs!r}", param="top_logprobs"
        )
    _refuse_in_stream(body, body.prompt_logprobs, "prompt_logprobs")
    fields = _generation_fields(body)
    _take_alias(fields, body, "max_tokens", "max_completion_tokens")
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    return SamplingParams(**fields, prompt_logprobs=body.prompt_logprobs)


def completion_params(body: CompletionRequest) -> SamplingParams:
    """Sampling parameters of a completion request.

    Raises:
        InvalidRequestError: a value is out of range, or two fields contradict each other.
        UnsupportedParameterError: log probabilities of the prompt in a stream.
    """
    n, of = body.n or 1, body.best_of or body.n or 1
    if of < n or (of > n and body.stream):
        raise InvalidRequestError(
            f"best_of must be at least n ({n}), and n where the answer is a stream, got {of}",
            param="best_of",
        )
    echoed = body.logprobs if body.echo else None
    _refuse_in_stream(body, echoed, "echo")
    if echoed is not None and body.suffix:
        raise UnsupportedParameterError(
            "echo with logprobs is not supported with suffix: the prompt is not the text alone"
            " then; leave one of them out",
            param="echo",
        )
    _refuse_in_stream(body, body.prompt_logprobs, "prompt_logprobs")
    asked = [count for count in (echoed, body.prompt_logprobs) if count is not None]
    fields = {"max_tokens": DEFAULT_COMPLETION_TOKENS} | _generation_fields(body)
    # The likeliest choices are told by their log probabilities, whether they are shown or not.
    return SamplingParams(
        **fields,
        logprobs=0 if of > n and body.logprobs is None else body.logprobs,
        prompt_logprobs=max(asked, default=None),
    )


def _refuse_in_stream(body: GenerationRequest, logprobs: int | None, param: str) -> None:
    if body.stream and logprobs is not None:
        raise UnsupportedParameterError(
            f"log probabilities of the prompt, asked for by {param}, are not supported in a stream;"
            " leave out stream",
            param=param,
        )


def for_reading(
    params: SamplingParams, use: ToolUse, reading: Reading, service: Service
) -> SamplingParams:
    """The same for answers that may have more than text in them: calls are held to a grammar.

    Raises:
        InvalidRequestError: the answer is to be something else as well.
        GrammarError: the functions are too many or too large.
    """
    control_id = service.engine.model.tokenizer.control_id
    shown = tuple(text for text in reading.specials if control_id(text) is not None)
    grammar = held_to(params.grammar, use, reading, control_id)
    if grammar is params.grammar and not shown:
        return params
    return replace(params, grammar=grammar, shown_specials=shown)


def choices(job: Job) -> list[tuple[Sequence[int], SamplingParams]]:
    """All choices of a job. Choice i of a prompt draws with `seed + i`, so that they differ.

    What is asked of the prompt itself, its first choice tells for all.
    """
    variants = [job.params]
    for index in range(1, job.n):
        seed = None if job.params.seed is None else job.params.seed + index
        # Seeds have 64 bits: after the last comes the first.
        wrapped = seed - _SEEDS if seed is not None and seed >= _SEEDS else seed
        variants.append(job.params.for_another_choice(wrapped))
    return [(prompt, variant) for prompt in job.prompts for variant in variants]


def _generation_fields(body: GenerationRequest) -> dict[str, Any]:
    """As :func:`sampling_fields`, and `max_tokens`."""
    fields = sampling_fields(body, response_format(body.response_format))
    if body.max_tokens is not None:
        fields["max_tokens"] = body.max_tokens
    _take_alias(fields, body, "max_tokens", "n_predict")
    return fields


def sampling_fields(body: SamplingRequest, form: Grammar | None) -> dict[str, Any]:
    """Keywords of `SamplingParams` that all endpoints have, without those left out.

    `form` is what the endpoint's own field says about the form of the answer.

    Raises:
        InvalidRequestError: two fields contradict each other.
    """
    fields = {
        name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None
    }
    if body.stop is not None:
        fields["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    _take_alias(fields, body, "repetition_penalty", "repeat_penalty")
    if body.logit_bias is not None:
        fields["logit_bias"] = _logit_bias(body.logit_bias)
    fields["grammar"] = grammar_of(body, form)
    return fields


def _take_alias(fields: dict[str, Any], body: SamplingRequest, name: str, alias: str) -> None:
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
