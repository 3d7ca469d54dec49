"""From a body's messages and functions to what the model's chat template is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from heddle.errors import InvalidRequestError
from heddle.server.generate.tools import function_of, use_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heddle.engine import Engine
    from heddle.server.api.openai.schemas import ChatRequest, FunctionTool, Message
    from heddle.server.generate.tools import Function, ToolUse
    from heddle.text.parsing.reading import Reading

Json = dict[str, Any]

_OWN_VARIABLES = frozenset(
    ("messages", "tools", "add_generation_prompt", "continue_final_message", "range")
)
"""Names of a template that the request has other fields for, or none."""


class Conversation(Protocol):
    """The fields of a body that say how its messages are written."""

    @property
    def messages(self) -> Sequence[Message] | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...


def written(body: Conversation, tools: Sequence[Json] = ()) -> Json:
    """The conversation as keywords of `LoadedModel.chat_text`.

    Raises:
        InvalidRequestError: a message lacks what its role needs, or two ends are asked for.
    """
    goes_on = bool(body.continue_final_message)
    if goes_on and body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other; send one of them",
            param="continue_final_message",
        )
    return {
        "messages": _for_template(body.messages or ()),
        "tools": tools,
        "variables": template_variables(body.chat_template_kwargs),
        "continue_final_message": goes_on,
        "add_generation_prompt": body.add_generation_prompt is not False and not goes_on,
    }


def template_variables(asked: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What a body's `chat_template_kwargs` gives the template.

    Raises:
        InvalidRequestError: it has a name that the template is given something else for.
    """
    variables = asked or {}
    for name in variables:
        if name in _OWN_VARIABLES:
            raise InvalidRequestError(
                f"chat_template_kwargs cannot hold {name!r}, which the template is given anyway",
                param="chat_template_kwargs",
            )
    return variables


def chat_prompt(engine: Engine, conversation: Json, use: ToolUse) -> tuple[list[int], Reading]:
    """Token ids of a conversation, keywords of `LoadedModel.chat_text`, and how to read its answer.

    Raises:
        InvalidRequestError: the model has no chat template, its template refuses the messages, or
            they are too long for the context.
    """
    model = engine.model
    text = model.chat_text(**conversation)
    assert model.template is not None, "it wrote the text"
    goes_on = conversation["continue_final_message"]
    begun = conversation["messages"][-1]["content"] if goes_on else ""
    prompt = model.tokenizer.encode_chat(text)
    engine.check_length(len(prompt))
    return prompt, model.template.dialect.reading(text, use.names, begun)


def functions_of(tools: Sequence[FunctionTool] | None) -> list[Function]:
    """The functions of a body, in OpenAI's shape.

    Raises:
        InvalidRequestError: a schema is not one of an object.
    """
    return [
        function_of(tool.function, tool.function.parameters, f"tools[{place}].function.parameters")
        for place, tool in enumerate(tools or ())
    ]


def tool_use(body: ChatRequest) -> ToolUse:
    """What functions the answer to a chat may call.

    Raises:
        InvalidRequestError: see `function_of` and `use_of`.
    """
    choice, parallel = body.tool_choice, body.parallel_tool_calls is not False
    functions = functions_of(body.tools)
    if choice is None or isinstance(choice, str):
        return use_of(functions, choice, parallel=parallel)
    return use_of(functions, None, named=choice.function.name, parallel=parallel)


def _for_template(messages: Sequence[Message]) -> list[Json]:
    """The messages as chat templates expect them: content one string, absent fields absent."""
    return [_plain(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _plain(message: Message, path: str) -> Json:
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
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if calls:
        fields["tool_calls"] = [
            call_for_template(call.id, call.function.name, call.function.arguments)
            for call in calls
        ]
    return fields


def joined(parts: Iterable[str]) -> str:
    """The text of a message that came in parts.

    A newline goes between two parts, as llama.cpp and vLLM have it: clients send each paragraph or
    each document as a part of its own, and without it words run into one another.
    """
    return "\n".join(parts)


def call_for_template(id: str, name: str, arguments: str) -> Json:
    """A call of an earlier answer as chat templates expect it."""
    function = {"name": name, "arguments": _object(arguments)}
    return {"id": id, "type": "function", "function": function}


def _object(arguments: str) -> Json | str:
    """Arguments of a call as an object, as templates want them.

    What a model once wrote need not be JSON; such a conversation is not lost for that.
    """
    try:
        value = from_json(arguments or "{}", allow_inf_nan=False)  # which knows a deepest level
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
