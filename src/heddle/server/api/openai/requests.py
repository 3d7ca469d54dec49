"""Translates bodies of chat and text completions into requests and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.engine.requests.request import check_tokens
from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.server.api.openai.completion_writers import (
    AnswerOptions,
    ChatWriter,
    CompletionWriter,
)
from heddle.server.api.openai.logprobs import Echo
from heddle.server.api.openai.schemas import THINKING_BUDGETS
from heddle.server.generate.chat import chat_of, compose, functions_of
from heddle.server.generate.constraints import GRAMMAR_FIELDS, generation_grammar
from heddle.server.generate.parameters import one_value, parameters_of
from heddle.server.generate.reasoning import NO_WISH, ReasoningFields
from heddle.server.generate.request import GenerationRequest, prompts_of, tokens_in
from heddle.server.generate.tools import NO_TOOLS, ToolUse, close_schemas, use_of
from heddle.server.http.record import record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.sampling_params import SamplingParams
    from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
    from heddle.server.generate.fields import GenerationFields
    from heddle.server.generate.service import Served
    from heddle.text.tokenizer.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16
"""Default of `max_tokens` in /v1/completions, as in OpenAI's API. A model ends its answer in a
chat, but seldom the continuation of plain text."""


_OF_REASONING = frozenset(
    ("reasoning_effort", "reasoning", "thinking", "enable_thinking", *THINKING_BUDGETS)
)
"""The fields that :func:`_reasoning` reads."""


def from_chat(
    body: ChatRequest, served: Served, scope: Scope
) -> tuple[GenerationRequest, ChatWriter]:
    """Translate a chat body into its request and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, the model has no chat template, its template
            refuses the messages, or the prompt is too long for the context.
    """
    n = body.n or 1
    usage, counts = _usage_wanted(body, scope) if body.stream_options else (False, False)
    if n > 1:
        served.check_choices(1, n)
    chat = chat_of(
        body,
        sampling=chat_params(body, served),
        tools=_tool_use(body) if body.tools or body.tool_choice else NO_TOOLS,
        reasoning=NO_WISH if body.model_fields_set.isdisjoint(_OF_REASONING) else _reasoning(body),
        open_schemas=body.open_schemas,
    )
    request, reading = compose(chat, served, scope, n=n, stream=bool(body.stream))
    verbose = served.config.log_level == "debug" if body.verbose is None else body.verbose
    options = AnswerOptions(
        usage,
        _prompt_tokens(request) if counts else (),
        bool(body.return_progress),
        chat.sampling.logprobs,
        body.prompt_logprobs,
        reading=reading,
        fingerprint=served.fingerprint,
        verbose=_verbose(served, tokens_in(request.prompts[0])) if verbose else None,
    )
    return request, ChatWriter(served.name, served.engine.model.tokenizer, options)


def from_completion(
    body: CompletionRequest, served: Served, scope: Scope
) -> tuple[GenerationRequest, CompletionWriter]:
    """Translate a completion body into its request and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, or a prompt is too long for the context.
    """
    model = served.name
    params, _ = close_schemas(completion_params(body, served), NO_TOOLS, body.open_schemas, served)
    n = body.n or 1
    usage, counts = _usage_wanted(body, scope) if body.stream_options else (False, False)
    texts, of = prompts_of(body.prompt), body.best_of or n
    served.check_choices(len(texts), of)
    tokenizer = served.engine.model.tokenizer
    for text in texts:
        if not isinstance(text, str):
            check_tokens(served.engine.model, text, "prompt")
    if body.suffix:
        prompts = [tokenizer.encode_fill_in(text, body.suffix) for text in texts]
    else:
        prompts = [tokenizer.encode(text) if isinstance(text, str) else text for text in texts]
    request = GenerationRequest(model, prompts, params, of, bool(body.stream))
    options = AnswerOptions(
        usage,
        _prompt_tokens(request) if counts else (),
        bool(body.return_progress),
        body.logprobs,
        body.prompt_logprobs,
        best=n if of > n else None,
        echo=_echoes(texts, prompts, tokenizer) if body.echo else (),
        fingerprint=served.fingerprint,
    )
    return request, CompletionWriter(model, tokenizer, options, of)


def _verbose(served: Served, prompt: Sequence[int]) -> dict[str, object]:
    """llama.cpp's `__verbose`: what the chat template wrote."""
    return {"prompt": served.engine.model.tokenizer.decode(prompt, skip_special=False)}


def _tool_use(body: ChatRequest) -> ToolUse:
    """The functions that the answer to a chat may call.

    Raises:
        InvalidRequestError: see `function_of` and `use_of`.
    """
    choice, parallel = body.tool_choice, body.parallel_tool_calls is not False
    chosen = choice if choice is None or isinstance(choice, str) else choice.chosen
    return use_of(functions_of(body.tools), chosen, parallel=parallel)


def _reasoning(body: ChatRequest) -> ReasoningFields:
    """The reasoning fields of a body.

    Raises:
        InvalidRequestError: two fields have different limits, or differ in whether to reason.
    """
    thinking = body.thinking
    switched = thinking and thinking.type != "disabled"
    switch, on = one_value([("enable_thinking", body.enable_thinking), ("thinking", switched)])
    limits = [(name, getattr(body, name)) for name in THINKING_BUDGETS]
    limits.append(("thinking.budget_tokens", thinking and thinking.budget_tokens))
    name, most = one_value(limits)
    effort = body.reasoning.effort if body.reasoning else None
    return ReasoningFields(
        body.reasoning_effort or effort,
        "reasoning_effort" if body.reasoning_effort else "reasoning.effort",
        on,
        switch,
        None if most == -1 else most,
        name,
    )


def _echoes(
    texts: Sequence[str | list[int]], prompts: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> list[Echo]:
    def text_of(prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special=False)

    # The engine adds a BOS token to an empty prompt.
    return [
        Echo(text_of(text), prompt[0] if prompt else tokenizer.bos_id or 0)
        for text, prompt in zip(texts, prompts, strict=True)
    ]


def _usage_wanted(body: GenerationFields, scope: Scope) -> tuple[bool, bool]:
    """Whether a stream should end with its token counts, and whether each chunk should have them.

    As in vLLM, chunks have token counts only if the stream also ends with them.
    """
    options = body.stream_options
    assert options is not None, "the caller has looked"
    if not body.stream:
        raise InvalidRequestError(
            f"stream_options needs stream to be true, got {body.stream!r}", param="stream_options"
        )
    usage, counts = bool(options.include_usage), bool(options.continuous_usage_stats)
    if counts and not usage:
        record_of(scope).ignored.append("stream_options.continuous_usage_stats")
    return usage, counts and usage


def _prompt_tokens(request: GenerationRequest) -> list[int]:
    """Tokens of the prompt of each choice. The engine adds a BOS token to an empty prompt."""
    return [len(tokens_in(prompt)) or 1 for prompt in request.prompts for _ in range(request.n)]


def chat_params(body: ChatRequest, served: Served) -> SamplingParams:
    """Sampling parameters of a chat request.

    Raises:
        InvalidRequestError: a value is out of range, or two fields contradict each other.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError(
            f"top_logprobs needs logprobs to be true, got {body.logprobs!r}", param="top_logprobs"
        )
    if body.prompt_logprobs is not None:
        _refuse_in_stream(body, body.prompt_logprobs, "prompt_logprobs")
    return served.sampling_params(
        **parameters_of(body, served.engine.model.tokenizer),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        grammar=generation_grammar(body) if body.model_fields_set & GRAMMAR_FIELDS else None,
    )


def completion_params(body: CompletionRequest, served: Served) -> SamplingParams:
    """Sampling parameters of a completion request.

    Raises:
        InvalidRequestError: a value is out of range, or two fields contradict each other.
        UnsupportedParameterError: log probabilities of the prompt in a stream.
    """
    n, of = body.n or 1, body.best_of or body.n or 1
    if of < n or (of > n and body.stream):
        raise InvalidRequestError(
            f"best_of must be at least n ({n}), and equal to n in a stream, got {of}",
            param="best_of",
        )
    echoed = body.logprobs if body.echo else None
    _refuse_in_stream(body, echoed, "echo")
    if echoed is not None and body.suffix:
        raise UnsupportedParameterError(
            "echo with logprobs is not supported with suffix, because the prompt then has more than"
            " the text; leave out one of the three",
            param="echo",
        )
    _refuse_in_stream(body, body.prompt_logprobs, "prompt_logprobs")
    counts = [count for count in (echoed, body.prompt_logprobs) if count is not None]
    least = {"max_tokens": DEFAULT_COMPLETION_TOKENS} | dict(served.config.sampling)
    given = least | parameters_of(body, served.engine.model.tokenizer)
    # best_of compares log probabilities, even if the answer does not show them.
    return served.sampling_params(
        **given,
        logprobs=0 if of > n and body.logprobs is None else body.logprobs,
        prompt_logprobs=max(counts, default=None),
        grammar=generation_grammar(body) if body.model_fields_set & GRAMMAR_FIELDS else None,
    )


def _refuse_in_stream(body: GenerationFields, logprobs: int | None, param: str) -> None:
    if body.stream and logprobs is not None:
        raise UnsupportedParameterError(
            f"{param} asks for log probabilities of the prompt, which are not supported in a"
            " stream; leave out stream",
            param=param,
        )
