"""The functions that an answer may call or must call, and the grammars of those calls.

A required call follows its function's schema. Where the model is free to call, a grammar constrains
a call once it has begun: `strict` functions get their schema, others any JSON object.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from heddle.errors import InvalidRequestError
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.constrained.closed_schema import closed
from heddle.text.constrained.normalised_schema import normalised
from heddle.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.server.generate.service import Service
    from heddle.text.parsing.reading import Reading
    from heddle.types import SamplingParams

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a request.

    Attributes:
        tool: the function as chat templates take it, in the shape of OpenAI's API.
        schema: the schema of its arguments, for the grammar.
        strict: whether every call must follow the schema, required or not.
        param: the field of the body that holds the schema.
    """

    tool: Json
    schema: Mapping[str, Any]
    strict: bool
    param: str

    @property
    def name(self) -> str:
        """The function's name."""
        name: str = self.tool["function"]["name"]
        return name


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that an answer may call.

    Attributes:
        functions: empty for an answer without calls.
        required: whether the answer must call a function.
        named: the function that the answer must call; None for any.
        parallel: whether the answer may hold several calls.
    """

    functions: Sequence[Function] = ()
    required: bool = False
    named: str | None = None
    parallel: bool = True

    @property
    def tools(self) -> list[Json]:
        """The functions as chat templates take them."""
        return [function.tool for function in self.functions]

    @property
    def names(self) -> list[str]:
        """The functions' names."""
        return [function.name for function in self.functions]


NO_TOOLS = ToolUse()


class Described(Protocol):
    """Fields of a function that every API has. The field of its schema has several names."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def strict(self) -> bool | None: ...


def function_of(tool: Described, schema: Mapping[str, Any] | None, param: str) -> Function:
    """A function whose arguments follow `schema`, from the field `param`. None: no arguments.

    Raises:
        InvalidRequestError: the schema is not one of an object.
    """
    if (schema or {}).get("type", "object") != "object":
        raise InvalidRequestError(
            f"{param} must be a schema of type 'object', got {schema!r:.100}", param=param
        )
    fields: Json = {"name": tool.name}
    if tool.description is not None:
        fields["description"] = tool.description
    fields["parameters"] = {"type": "object", "properties": {}} if schema is None else schema
    tool_of_template = {"type": "function", "function": fields}
    return Function(tool_of_template, fields["parameters"], bool(tool.strict), param)


def use_of(
    functions: Sequence[Function],
    choice: str | None,
    *,
    named: str | None = None,
    parallel: bool = True,
) -> ToolUse:
    """The use of functions that `tools` and `tool_choice` ask for.

    Args:
        functions: of the request.
        choice: "auto", "none" or "required"; None for "auto".
        named: the function that the answer must call, once; `choice` and `parallel` have no effect
            then. OpenAI defines a named choice so, and small models repeat a call that they may
            repeat.
        parallel: whether the answer may hold several calls.

    Raises:
        InvalidRequestError: two functions have one name, or no function has the name chosen.
    """
    names: set[str] = set()
    for function in functions:
        if function.name in names:
            raise InvalidRequestError(
                f"tools has two functions named {function.name!r}; give each its own name",
                param="tools",
            )
        names.add(function.name)
    required = named is not None or choice == "required"
    if required and not functions:
        raise InvalidRequestError(
            "tool_choice requires a call, but tools is missing or empty; send tools",
            param="tool_choice",
        )
    if named is not None and named not in names:
        raise InvalidRequestError(
            f"tool_choice names {named!r}, which tools does not have; send it or choose another",
            param="tool_choice",
        )
    several = parallel and named is None
    return ToolUse(() if choice == "none" else functions, required, named, several)


def close_schemas(
    params: SamplingParams, use: ToolUse, wanted_open: bool | None, service: Service
) -> tuple[SamplingParams, ToolUse]:
    """Parameters and functions with normalised schemas.

    The schemas are closed unless the body or the server asks for open schemas. The chat template
    still gets the schemas of the request, unchanged.

    Raises:
        GrammarError: a schema is too long.
    """
    is_open = service.config.open_schemas if wanted_open is None else wanted_open

    def served(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        return normalised(schema) if is_open else closed(normalised(schema))

    functions = [replace(one, schema=served(one.schema)) for one in use.functions]
    grammar = None if params.grammar is None else _served_grammar(params.grammar, served)
    return replace(params, grammar=grammar), replace(use, functions=functions)


def _served_grammar(
    grammar: Grammar, served: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Grammar:
    if grammar.kind is not GrammarKind.JSON_SCHEMA:
        return grammar
    try:
        schema = from_json(grammar.text, allow_inf_nan=False)
    except ValueError:
        return grammar  # compiling it gives the error
    return (
        Grammar.json_schema(served(schema), grammar.param) if isinstance(schema, dict) else grammar
    )


def constrained_to(
    grammar: Grammar | None,
    use: ToolUse,
    reading: Reading,
    control_id: Callable[[str], int | None],
) -> Grammar | None:
    """The grammar of a whole answer: of its calls, and of its text if `grammar` constrains that.

    Raises:
        InvalidRequestError: the two exclude each other.
        GrammarError: the functions are too many or too large.
    """
    callees = [_callee(function, use) for function in _callable(use)]
    if use.required and grammar is not None and not grammar.param.startswith("guided_"):
        grammar = None  # it constrains text, and a required call leaves no text
    if grammar is not None:
        return _also(grammar, callees, use, reading, control_id)
    if not callees:
        return None
    if use.required:
        text = answer_grammar(reading, callees, control_id, parallel=use.parallel)
        return Grammar.lark(text, "tools")
    assert reading.form is not None, "there are functions"
    text = calls_grammar(reading.form, callees, control_id, parallel=use.parallel)
    return Grammar(GrammarKind.LARK, text, "tools", beginning=reading)


def constrain(
    params: SamplingParams, use: ToolUse, reading: Reading, service: Service
) -> SamplingParams:
    """Parameters whose grammar constrains calls and reasoning too, as `reading` finds them.

    Raises:
        InvalidRequestError: another field constrains the answer as well.
        GrammarError: the functions are too many or too large.
    """
    control_id = service.engine.model.tokenizer.control_id
    shown = tuple(text for text in reading.specials if control_id(text) is not None)
    grammar = constrained_to(params.grammar, use, reading, control_id)
    if grammar is params.grammar and not shown:
        return params
    return replace(params, grammar=grammar, shown_specials=shown)


def compile_candidates(use: ToolUse) -> list[Grammar]:
    """A grammar for each function. If the grammar of all cannot be compiled, one of these says why.

    Raises:
        GrammarError: one is too large.
    """
    return [
        Grammar.json_schema(callee.arguments(), function.param)
        for function in _callable(use)
        if (callee := _callee(function, use)).schema is not None
    ]


def _callable(use: ToolUse) -> list[Function]:
    """The functions that an answer may call. The model is told of all functions."""
    return [function for function in use.functions if use.named in (None, function.name)]


def _callee(function: Function, use: ToolUse) -> Callee:
    is_constrained = use.required or function.strict
    schema = function.schema if is_constrained else None
    return Callee(function.name, schema, function.strict)


def _also(
    grammar: Grammar,
    callees: Sequence[Callee],
    use: ToolUse,
    reading: Reading,
    control_id: Callable[[str], int | None],
) -> Grammar:
    """A grammar of reasoning, then either what `grammar` allows or calls."""
    if use.required or (callees and grammar.kind is not GrammarKind.JSON_SCHEMA):
        raise InvalidRequestError(
            f"{grammar.param} and tools both constrain the answer; send one of them",
            param=grammar.param,
        )
    if grammar.kind is not GrammarKind.JSON_SCHEMA or not (callees or reading.marks):
        return grammar
    try:
        schema = from_json(grammar.text, allow_inf_nan=False)
    except ValueError:
        return grammar  # compiling it gives the error
    # Unchanged, so that references inside of it stay valid. Only an object can hold references.
    otherwise = schema if isinstance(schema, dict) else {"allOf": [schema]}
    text = answer_grammar(reading, callees, control_id, parallel=use.parallel, otherwise=otherwise)
    return Grammar.lark(text, grammar.param)
