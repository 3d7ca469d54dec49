"""Translates bodies of `/api/chat` and `/api/generate` into requests and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.engine.requests.request import check_tokens
from heddle.errors import InvalidRequestError
from heddle.extensions.ollama.fields import BESIDE, Options, note_context
from heddle.extensions.ollama.writer import ChatWriter, Clock, GenerateWriter
from heddle.grammars import Grammar
from heddle.pictures import Laid
from heddle.sent_pictures import SentPicture
from heddle.server.generate.chat import Chat, compose, content_of, joined_tokens
from heddle.server.generate.parameters import one_value, parameters_of
from heddle.server.generate.reasoning import ReasoningFields
from heddle.server.generate.request import GenerationRequest
from heddle.server.generate.tools import NO_TOOLS, close_schemas, function_of, use_of
from heddle.text.parsing.reading import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.extensions.ollama.fields import Format, Think
    from heddle.extensions.ollama.schemas import (
        ChatRequest,
        GenerateRequest,
        GenerationBody,
        Message,
    )
    from heddle.sampling_params import SamplingParams
    from heddle.server.generate.service import Served
    from heddle.server.generate.tools import ToolUse
    from heddle.text.parsing.reading import Reading

Json = dict[str, Any]

_PENALISED = 64
"""Ollama's default of `repeat_last_n`."""


def from_chat(
    body: ChatRequest, served: Served, scope: Scope
) -> tuple[GenerationRequest, ChatWriter]:
    """Translate a body into its request and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, the model has no chat template, its template
            refuses the messages, or the prompt is too long for the context.
    """
    messages = [_plain(message, f"messages[{i}]") for i, message in enumerate(body.messages or ())]
    use = _tool_use(body)
    request, reading = _conversation(body, messages, use, served, scope)
    clock, spelling = Clock.of(scope), served.engine.model.tokenizer
    return request, ChatWriter(served.name, spelling, clock, reading, logprobs=bool(body.logprobs))


def from_generate(
    body: GenerateRequest, served: Served, scope: Scope
) -> tuple[GenerationRequest, GenerateWriter]:
    """Translate a body into its request and the writer of its answer.

    A model without a chat template continues the prompt as it is.

    Raises:
        InvalidRequestError: as for :func:`from_chat`; or two fields exclude each other; or the
            model has no FIM tokens for a suffix.
    """
    _check_raw(body)
    model, context = served.engine.model, body.context or []
    check_tokens(model, context, "context")
    is_text = body.raw or body.suffix or model.template is None
    if is_text and body.system and not body.raw:
        raise InvalidRequestError(
            "system needs a chat template, which a suffix and this model do not have; write the"
            " system message into the prompt",
            param="system",
        )
    if is_text and body.images:
        raise InvalidRequestError(
            "images need a chat template, which raw, suffix and this model leave out; send"
            " messages to /api/chat",
            param="images",
        )
    if is_text:
        request, reading = _continuation(body, served, scope), PLAIN
    else:
        said = [("system", body.system), ("user", body.prompt)]
        messages: list[Json] = [{"role": role, "content": text} for role, text in said if text]
        messages[-1]["content"] = _content(body.prompt or "", body.images, "")
        request, reading = _conversation(body, messages, NO_TOOLS, served, scope, context)
    prompt = request.prompts[0]
    memory = None if body.raw or isinstance(prompt, Laid) else prompt
    clock, logprobs = Clock.of(scope), bool(body.logprobs)
    writer = GenerateWriter(
        served.name, model.tokenizer, clock, reading, logprobs=logprobs, context=memory
    )
    return request, writer


def _check_raw(body: GenerateRequest) -> None:
    for name in ("system", "context"):
        if body.raw and getattr(body, name):
            raise InvalidRequestError(
                f"raw sends the prompt as it is, without {name}; leave one of them out", param=name
            )


def _continuation(body: GenerateRequest, served: Served, scope: Scope) -> GenerationRequest:
    """A request whose answer continues the prompt itself, or fills the gap before the suffix."""
    tokenizer, prompt = served.engine.model.tokenizer, body.prompt or ""
    params, _ = close_schemas(_sampling(body, served, scope), NO_TOOLS, None, served)
    if body.suffix:
        tokens = tokenizer.encode_fill_in(prompt, body.suffix)
    else:
        tokens = tokenizer.encode(prompt)
    tokens = joined_tokens(body.context or (), tokens, tokenizer.bos_id)
    served.engine.check_length(len(tokens), output=params.max_tokens != 0)
    return GenerationRequest(served.name, [tokens], params, stream=body.stream is not False)


def _conversation(
    body: GenerationBody,
    messages: list[Json],
    use: ToolUse,
    served: Served,
    scope: Scope,
    context: Sequence[int] = (),
) -> tuple[GenerationRequest, Reading]:
    """The request for the next message after `context` and `messages`, and its reading."""
    last = messages[-1]
    continues = last["role"] == "assistant" and "tool_calls" not in last
    chat = Chat(
        messages,
        _sampling(body, served, scope),
        use,
        _reasoning(body.think),
        continues=continues,
        opens_answer=not continues,
        before=context,
    )
    return compose(chat, served, scope, stream=body.stream is not False)


def _sampling(body: GenerationBody, served: Served, scope: Scope) -> SamplingParams:
    """The sampling parameters of a body.

    Raises:
        InvalidRequestError: a value is out of range, or `top_logprobs` comes without `logprobs`.
        GrammarError: the schema is too long.
    """
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError(
            f"top_logprobs needs logprobs to be true, got {body.logprobs!r}", param="top_logprobs"
        )
    options = _options(body)
    note_context(options, served, scope)
    given = parameters_of(options, served.engine.model.tokenizer)
    if given.get("max_tokens", 0) < 0:
        del given["max_tokens"]
    if given.get("seed") == -1:
        del given["seed"]
    if "repetition_penalty" in given:
        given = {"repeat_last_n": _PENALISED} | given
    return served.sampling_params(
        **given,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=_grammar(body.format),
    )


def _options(body: GenerationBody) -> Options:
    """`options` of a body, with the parameters beside it.

    Raises:
        InvalidRequestError: two fields of a parameter have different values.
    """
    options = body.options or Options()
    for name, option in BESIDE.items():
        fields = [(f"options.{option}", getattr(options, option)), (name, getattr(body, name))]
        options = options.model_copy(update={option: one_value(fields)[1]})
    return options


def _grammar(form: Format | None) -> Grammar | None:
    if not form and form != {}:
        return None
    return Grammar.json_schema({"type": "object"} if isinstance(form, str) else form, "format")


def _tool_use(body: ChatRequest) -> ToolUse:
    """The functions that the answer may call. Ollama itself has no `tool_choice`; clients send it.

    Raises:
        InvalidRequestError: see `function_of` and `use_of`.
    """
    functions = [
        function_of(tool.function, tool.function.parameters, f"tools[{i}].function.parameters")
        for i, tool in enumerate(body.tools or ())
    ]
    choice = body.tool_choice
    return use_of(functions, choice if choice is None or isinstance(choice, str) else choice.chosen)


def _reasoning(think: Think | None) -> ReasoningFields:
    """The reasoning fields that `think` stands for."""
    if isinstance(think, str):
        return ReasoningFields(think, "think")
    return ReasoningFields(enabled=think, enabled_param="think")


def _plain(message: Message, path: str) -> Json:
    """A message as chat templates expect it.

    Raises:
        InvalidRequestError: it has neither content nor calls, or calls in another role.
    """
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequestError(
            f"{path}.tool_calls needs role to be 'assistant', got {message.role!r}",
            param=f"{path}.tool_calls",
        )
    content = _content(message.content or "", message.images, f"{path}.")
    plain: Json = {"role": message.role, "content": content}
    if message.thinking:
        plain["reasoning_content"] = message.thinking
    if message.tool_name:
        plain["name"] = message.tool_name
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id or f"call_{place}",
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for place, call in enumerate(message.tool_calls)
        ]
    return plain


def _content(text: str, images: Sequence[str] | None, path: str) -> str | list[Json]:
    """The content of a message. Its pictures come before its text, as in Ollama."""
    sent = [
        SentPicture(image, f"{path}images[{place}]", is_base64=True)
        for place, image in enumerate(images or ())
    ]
    return content_of([*sent, text] if text else sent) if sent else text
