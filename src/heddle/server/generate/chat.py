"""Makes prompts from messages and functions with the model's chat template."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from heddle.errors import InvalidRequestError
from heddle.grammars import GrammarKind
from heddle.server.generate.tools import (
    close_schemas,
    compile_candidates,
    constrain,
    function_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from heddle.grammars import Grammar
    from heddle.server.generate.chat_fields import ChatMessage, FunctionTool
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served
    from heddle.server.generate.tools import Function, ToolUse
    from heddle.text.parsing.reading import Reading

Json = dict[str, Any]

_OWN_VARIABLES = frozenset(
    ("messages", "tools", "add_generation_prompt", "continue_final_message", "range")
)
"""Template variables that the server sets itself."""


class ChatFields(Protocol):
    """Fields of a body that decide how the chat template renders its messages."""

    @property
    def messages(self) -> Sequence[ChatMessage] | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...


def template_arguments(
    body: ChatFields, tools: Sequence[Json] = (), variables: Mapping[str, Any] | None = None
) -> Json:
    """Turn a body's messages and functions into keyword arguments of `LoadedModel.chat_text`.

    `variables` are further template variables. Variables in the body override them.

    Raises:
        InvalidRequestError: a message lacks a field of its role, or two fields exclude each other.
    """
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other; send one of them",
            param="continue_final_message",
        )
    return {
        "messages": _rendered_messages(body.messages or ()),
        "tools": tools,
        "variables": {**(variables or {}), **template_variables(body.chat_template_kwargs)},
        "continue_final_message": continues,
        "add_generation_prompt": body.add_generation_prompt is not False and not continues,
    }


def template_variables(kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The template variables in a body's `chat_template_kwargs`.

    Raises:
        InvalidRequestError: the server itself sets a variable of this name.
    """
    variables = kwargs or {}
    for name in variables:
        if name in _OWN_VARIABLES:
            raise InvalidRequestError(
                f"chat_template_kwargs cannot have {name!r}, which the server sets; leave it out",
                param="chat_template_kwargs",
            )
    return variables


def chat_request(
    served: Served,
    request: GenerationRequest,
    use: ToolUse,
    arguments: Callable[[], Json],
    *,
    open_schemas: bool | None,
    before: Sequence[int] = (),
) -> tuple[GenerationRequest, Reading]:
    """Add the prompt of a conversation and the grammar of its calls to `request`.

    Returns the complete request, and the reading of its outputs.

    Args:
        served: has the model and its chat template.
        request: a request without prompts.
        use: the functions that the answer may call.
        arguments: makes the keyword arguments of `LoadedModel.chat_text`.
        open_schemas: the body's field `open_schemas`.
        before: tokens of an earlier conversation, which this one continues.

    Raises:
        InvalidRequestError: the model has no chat template, its template refuses the messages, the
            prompt is too long for the context, or two fields constrain the answer.
        GrammarError: the request has too many functions or too large schemas.
    """
    params, use = close_schemas(request.params, use, open_schemas, served)
    candidates = compile_candidates(use)
    prompt, reading = _chat_prompt(served, arguments(), use, params.grammar, before)
    params = constrain(params, use, reading, served)
    request = replace(request, prompts=[prompt], params=params, compile_candidates=candidates)
    return request, reading


def _chat_prompt(
    served: Served,
    arguments: Json,
    use: ToolUse,
    grammar: Grammar | None,
    before: Sequence[int],
) -> tuple[list[int], Reading]:
    engine = served.engine
    model = engine.model
    text = model.chat_text(**arguments)
    assert model.template is not None, "the template wrote the text"
    dialect = model.template.dialect
    if grammar is not None and grammar.kind is not GrammarKind.JSON_SCHEMA:
        text = dialect.text_opened(text)  # the grammar allows neither marks nor reasoning
    continues = arguments["continue_final_message"]
    begun = arguments["messages"][-1]["content"] if continues else ""
    prompt = joined_tokens(before, model.tokenizer.encode_chat(text), model.tokenizer.bos_id)
    engine.check_length(len(prompt))
    return prompt, dialect.reading(text, use.names, begun)


def joined_tokens(before: Sequence[int], tokens: list[int], bos: int | None) -> list[int]:
    """The tokens after those of an earlier conversation, which has a BOS token already."""
    if not before:
        return tokens
    return [*before, *(tokens[1:] if tokens[:1] == [bos] else tokens)]


def functions_of(tools: Sequence[FunctionTool] | None) -> list[Function]:
    """The functions of a body in OpenAI's shape.

    Raises:
        InvalidRequestError: a schema is not the schema of an object.
    """
    return [
        function_of(tool.function, tool.function.parameters, f"tools[{place}].function.parameters")
        for place, tool in enumerate(tools or ())
    ]


def _rendered_messages(messages: Sequence[ChatMessage]) -> list[Json]:
    """The messages as chat templates expect them: content is a string, null fields are left out."""
    return [_plain(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _plain(message: ChatMessage, path: str) -> Json:
    calls = message.tool_calls or ()
    if calls and message.role != "assistant":
        raise InvalidRequestError(
            f"{path}.tool_calls needs role to be 'assistant', got {message.role!r}",
            param=f"{path}.tool_calls",
        )
    content = message.content
    if content is None:
        if not calls:
            raise InvalidRequestError(
                f"missing required parameter: {path}.content", param=f"{path}.content"
            )
        content = ""
    if not isinstance(content, str):
        content = joined(part.text for part in content)
    fields: Json = {"role": message.role, "content": content}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if (thoughts := message.reasoning_content or message.reasoning) is not None:
        fields["reasoning_content"] = thoughts
    if calls:
        fields["tool_calls"] = [
            call_for_template(call.id, call.function.name, call.function.arguments)
            for call in calls
        ]
    return fields


def joined(parts: Iterable[str]) -> str:
    """Join the text parts of a message with newlines, as llama.cpp and vLLM do.

    Some clients send each paragraph or document as a separate part. Without the newline, the last
    word of a part would join the first word of the next part.
    """
    return "\n".join(parts)


def call_for_template(id: str, name: str, arguments: str) -> Json:
    """A call from an earlier answer, in the form that chat templates expect."""
    function = {"name": name, "arguments": _object(arguments)}
    return {"id": id, "type": "function", "function": function}


def _object(arguments: str) -> Json | str:
    """The arguments of a call as an object, which templates expect; else as text.

    A model may have written invalid JSON in an earlier answer. The conversation can still continue.
    """
    try:
        value = from_json(arguments or "{}", allow_inf_nan=False)  # limits the depth
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
