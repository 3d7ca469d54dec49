"""Composes the request of a conversation: its prompt, its grammar, the reading of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydantic_core import from_json

from heddle.errors import InvalidRequestError
from heddle.grammars import JSON_SCHEMA
from heddle.pictures import Illustrated
from heddle.sampling_params import SamplingParams
from heddle.sent_pictures import picture_reader
from heddle.server.generate.chat_fields import TextPart
from heddle.server.generate.reasoning import NO_WISH, ReasoningFields
from heddle.server.generate.request import GenerationRequest
from heddle.server.generate.tools import (
    NO_TOOLS,
    ToolUse,
    close_schemas,
    compile_candidates,
    constrain,
    function_of,
)
from heddle.text.chat.illustrations import pictures_in, text_in
from heddle.text.parsing.reading import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.types import Scope

    from heddle.grammars import Grammar
    from heddle.pictures import Laid
    from heddle.sent_pictures import SentPicture
    from heddle.server.generate.chat_fields import ChatMessage, FunctionTool
    from heddle.server.generate.service import Served
    from heddle.server.generate.tools import Function
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


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to answer, whichever API it came by. `compose` makes the request.

    Attributes:
        messages: in the form that chat templates expect: contents are strings, arguments of calls
            are objects. A content with pictures is a list of parts, see :func:`content_of`.
        sampling: sampling parameters. Their grammar is the format of the answer's text.
        tools: the functions that the answer may call.
        reasoning: what the body says about reasoning.
        variables: further variables of the template. They override those of `reasoning`.
        continues: whether the answer continues the last message: its content, or its reasoning if
            it has no content.
        opens_answer: whether the prompt ends with the beginning of the answer.
        open_schemas: the body's field `open_schemas`.
        before: tokens of an earlier conversation, which this one continues.
    """

    messages: Sequence[Json]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    tools: ToolUse = NO_TOOLS
    reasoning: ReasoningFields = NO_WISH
    variables: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False
    opens_answer: bool = True
    open_schemas: bool | None = None
    before: Sequence[int] = ()

    @property
    def begun(self) -> str:
        """The text that the answer continues: the last message's content, else its reasoning."""
        last = self.messages[-1]
        return text_in(last["content"]) or last.get("reasoning_content", "")

    def text(self, served: Served, scope: Scope) -> str:
        """The text that the chat template of the model writes.

        Raises:
            InvalidRequestError: the model has no chat template, or it refuses the messages.
            BlindModelError: there are pictures, and the model has no eyes.
        """
        model, variables = served.engine.model, self.variables
        if any(isinstance(one["content"], list) for one in self.messages):
            model.sight(pictures_in(self.messages)[0].param)
        if variables and model.template is not None:
            variables = model.template.dialect.reasoning.translated(variables)
        if self.reasoning is not NO_WISH:
            variables = {**self.reasoning.variables(served.engine, scope), **variables}
        return model.chat_text(
            self.messages,
            tools=self.tools.tools if self.tools.functions else (),
            variables=variables,
            continue_final_message=self.continues,
            add_generation_prompt=self.opens_answer,
        )

    def prompt(self, text: str, served: Served) -> Sequence[int] | Laid:
        """The prompt of a text that :meth:`text` has made. It reads the pictures.

        Raises:
            InvalidRequestError: a picture cannot be read, or comes after an earlier conversation.
        """
        model = served.engine.model
        if all(isinstance(one["content"], str) for one in self.messages):
            tokens = model.tokenizer.encode_chat(text)
            if not self.before:
                return tokens
            return joined_tokens(self.before, tokens, model.tokenizer.bos_id)
        if self.before:
            raise InvalidRequestError(
                "context holds token ids alone, so pictures cannot come after it; send the whole"
                " conversation as messages",
                param="context",
            )
        pictures = picture_reader().read(pictures_in(self.messages), served.config)
        return model.lay(Illustrated(text, tuple(pictures)))


def chat_of(body: ChatFields, **more: Any) -> Chat:
    """The chat of a body with messages in OpenAI's shape. `more` are further fields of the chat.

    Raises:
        InvalidRequestError: a message lacks a field of its role, or two fields exclude each other.
    """
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other; send one of them",
            param="continue_final_message",
        )
    if body.chat_template_kwargs:
        more["variables"] = template_variables(body.chat_template_kwargs)
    messages = [_plain(one, place) for place, one in enumerate(body.messages or ())]
    opens = body.add_generation_prompt is not False and not continues
    return Chat(messages, continues=continues, opens_answer=opens, **more)


def compose(
    chat: Chat, served: Served, scope: Scope, *, n: int = 1, stream: bool = False
) -> tuple[GenerationRequest, Reading]:
    """Make the request of a chat, and the reading of its answers.

    Args:
        chat: the conversation.
        served: has the model and its chat template.
        scope: the ASGI scope of the HTTP request. Its record gets fields without effect.
        n: number of choices.
        stream: whether the answer is a stream of events.

    Raises:
        InvalidRequestError: the model has no chat template, its template refuses the messages, or
            two fields constrain the answer.
        GrammarError: the request has too many functions or too large schemas.
    """
    params, use = chat.sampling, chat.tools
    candidates: Sequence[Grammar] = ()
    if use.functions or params.grammar is not None:
        params, use = close_schemas(params, use, chat.open_schemas, served)
        candidates = compile_candidates(use)
    text = chat.text(served, scope)
    model = served.engine.model
    assert model.template is not None, "the template wrote the text"
    dialect = model.template.dialect
    if params.grammar is not None and params.grammar.kind != JSON_SCHEMA:
        text = dialect.form.text_opened(text)  # the grammar allows neither marks nor reasoning
    plain = not chat.before and all(isinstance(one["content"], str) for one in chat.messages)
    prompt = model.tokenizer.encode_chat(text) if plain else chat.prompt(text, served)
    begun = chat.begun if chat.continues else ""
    reading = dialect.reading(text, use.schemas if use.functions else None, begun)
    if reading is not PLAIN or params.grammar is not None:
        params = constrain(params, use, reading, served)
    request = GenerationRequest(served.name, [prompt], params, n, stream, candidates)
    if chat.reasoning is not NO_WISH:
        request = chat.reasoning.bound(request, reading, served, scope)
    return request, reading


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


def _plain(message: ChatMessage, place: int) -> Json:
    """A message as chat templates expect it: content is a string, null fields are left out."""
    path, calls = f"messages[{place}]", message.tool_calls or ()
    if calls and message.role != "assistant":
        raise InvalidRequestError(
            f"{path}.tool_calls needs role to be 'assistant', got {message.role!r}",
            param=f"{path}.tool_calls",
        )
    thoughts = message.reasoning_content or message.reasoning
    content: str | list[Json] = ""
    if isinstance(message.content, str):
        content = message.content
    elif message.content is not None:
        content = content_of(
            part.text if isinstance(part, TextPart) else part.sent(f"{path}.content[{number}]")
            for number, part in enumerate(message.content)
        )
    elif not (calls or thoughts):
        raise InvalidRequestError(
            f"missing required parameter: {path}.content", param=f"{path}.content"
        )
    fields: Json = {"role": message.role, "content": content}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if thoughts is not None:
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


def content_of(pieces: Iterable[str | SentPicture]) -> str | list[Json]:
    """The content of a message: its text; with pictures, a list of parts of types text and image.

    Texts are joined as by :func:`joined`. Nothing stands between a picture and the text beside it,
    as in llama.cpp.
    """
    content: list[Json] = []
    for is_text, group in groupby(pieces, lambda one: isinstance(one, str)):
        if is_text:
            content.append({"type": "text", "text": joined(cast("Iterable[str]", group))})
        else:
            content += ({"type": "image", "image": one} for one in group)
    return content if any(part["type"] == "image" for part in content) else text_in(content)


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
