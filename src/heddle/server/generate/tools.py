"""The meaning of `tools` and `tool_choice`: what may or must be called, and grammars of the calls.

The arguments of a required call follow the function's schema. The grammar of an optional call
starts where the call begins: the arguments of a `strict` function follow its schema, and all other
arguments are a JSON object.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from heddle.errors import InvalidRequestError
from heddle.grammars import JSON_SCHEMA, LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.constrained.closed_schema import closed
from heddle.text.constrained.normalised_schema import normalised

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from heddle.sampling_params import SamplingParams
    from heddle.server.generate.service import Served
    from heddle.text.parsing.reading import Reading

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a request.

    Attributes:
        tool: the function in the form that chat templates expect, which is OpenAI's.
        schema: schema of the arguments, for the grammar.
        strict: whether optional calls must also follow the schema.
        param: the field of the body that has the schema.
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
    """The functions of a request, and the calls of its answer.

    Attributes:
        functions: the functions; empty: the answer has no calls.
        required: whether the answer must call a function.
        allowed: names of the functions that the answer may call; None: all. The prompt has all
            functions.
        parallel: whether the answer may have several calls.
    """

    functions: Sequence[Function] = ()
    required: bool = False
    allowed: Collection[str] | None = None
    parallel: bool = True

    @property
    def tools(self) -> list[Json]:
        """The functions in the form that chat templates expect."""
        return [function.tool for function in self.functions]

    @property
    def callable(self) -> list[Function]:
        """The functions that the answer may call."""
        return [one for one in self.functions if self.allowed is None or one.name in self.allowed]

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schemas of the functions that the answer may call, by name."""
        return {function.name: function.schema for function in self.callable}


NO_TOOLS = ToolUse()


@dataclass(frozen=True, slots=True)
class Chosen:
    """A tool choice that names functions.

    Attributes:
        names: the functions that the answer may call.
        required: whether the answer must call one.
        once: whether the answer may have one call only, whatever the request says about several.
            OpenAI defines the choice of one function in this way. Small models repeat a call if
            they may.
    """

    names: Sequence[str]
    required: bool
    once: bool = False

    @classmethod
    def function(cls, name: str) -> Chosen:
        """The choice of one function, which the answer must call."""
        return cls((name,), required=True, once=True)


class Described(Protocol):
    """The fields of a function that are the same in all APIs. The schema's field is not."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def strict(self) -> bool | None: ...


def function_of(tool: Described, schema: Mapping[str, Any] | None, param: str) -> Function:
    """Make a function whose arguments follow `schema`; None: it has no arguments.

    `param` is the field that has the schema, for errors.

    Raises:
        InvalidRequestError: the schema is not the schema of an object.
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
    functions: Sequence[Function], choice: str | Chosen | None, *, parallel: bool = True
) -> ToolUse:
    """The tool use that a body requests with its tools and its tool choice.

    Args:
        functions: the functions of the request.
        choice: "auto", "none", "required" or the functions to choose from; None: "auto".
        parallel: whether the answer may have several calls.

    Raises:
        InvalidRequestError: two functions have the same name, or no function has a chosen name.
    """
    names: set[str] = set()
    for function in functions:
        if function.name in names:
            raise InvalidRequestError(
                f"tools has two functions named {function.name!r}; give each its own name",
                param="tools",
            )
        names.add(function.name)
    chosen = choice if isinstance(choice, Chosen) else None
    required = choice == "required" if chosen is None else chosen.required
    if required and not functions:
        raise InvalidRequestError(
            "tool_choice requires a call, but tools is missing or empty; send tools",
            param="tool_choice",
        )
    if chosen is None:
        return ToolUse(() if choice == "none" else functions, required, parallel=parallel)
    for name in chosen.names:
        if name not in names:
            raise InvalidRequestError(
                f"tool_choice names {name!r}, which is not in tools; add this function to tools or"
                " choose another",
                param="tool_choice",
            )
    return ToolUse(functions, required, frozenset(chosen.names), parallel and not chosen.once)


def close_schemas(
    params: SamplingParams, use: ToolUse, open_schemas: bool | None, served: Served
) -> tuple[SamplingParams, ToolUse]:
    """Normalise the schemas of parameters and functions, and close them.

    Schemas stay open if the body or the server asks for open schemas. The chat template gets the
    unchanged schemas of the request.

    Raises:
        GrammarError: a schema is too long.
    """
    is_open = served.config.open_schemas if open_schemas is None else open_schemas

    def enforced(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        return normalised(schema) if is_open else closed(normalised(schema))

    functions = [replace(one, schema=enforced(one.schema)) for one in use.functions]
    grammar = None if params.grammar is None else _served_grammar(params.grammar, enforced)
    return replace(params, grammar=grammar), replace(use, functions=functions)


def _served_grammar(
    grammar: Grammar, enforced: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Grammar:
    if grammar.kind != JSON_SCHEMA:
        return grammar
    try:
        schema = from_json(grammar.text, allow_inf_nan=False)
    except ValueError:
        return grammar  # compiling it gives the error
    return (
        Grammar.json_schema(enforced(schema), grammar.param)
        if isinstance(schema, dict)
        else grammar
    )


def constrained_to(
    grammar: Grammar | None,
    use: ToolUse,
    reading: Reading,
    control_id: Callable[[str], int | None],
) -> Grammar | None:
    """The grammar of a complete answer: of its calls, and of its text if `grammar` constrains it.

    Raises:
        InvalidRequestError: `grammar` and the calls exclude each other.
        GrammarError: the request has too many functions or too large schemas.
    """
    callees = [_callee(function, use) for function in use.callable]
    if use.required and grammar is not None and not grammar.param.startswith("guided_"):
        grammar = None  # the grammar constrains text, and an answer with a required call has none
    if grammar is not None:
        return _text_or_calls(grammar, callees, use, reading, control_id)
    if not callees:
        return None
    if use.required:
        text = answer_grammar(reading, callees, control_id, parallel=use.parallel)
        return Grammar.lark(text, "tools")
    assert reading.form is not None, "there are functions"
    text = calls_grammar(reading.form, callees, control_id, parallel=use.parallel)
    return Grammar(LARK, text, "tools", beginning=reading)


def constrain(
    params: SamplingParams, use: ToolUse, reading: Reading, served: Served
) -> SamplingParams:
    """Extend the grammar of `params` to the calls and the reasoning of the answer.

    Raises:
        InvalidRequestError: another field also constrains the answer.
        GrammarError: the request has too many functions or too large schemas.
    """
    control_id = served.engine.model.tokenizer.control_id
    shown = reading.controls(control_id)
    grammar = constrained_to(params.grammar, use, reading, control_id)
    if grammar is params.grammar and not shown:
        return params
    return replace(params, grammar=grammar, shown_specials=shown)


def call_object(arguments: str) -> Json | None:
    """The arguments of a call as an object; None if the model wrote anything else."""
    try:
        value = from_json(arguments, allow_inf_nan=False)  # limits the depth
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def compile_candidates(use: ToolUse) -> list[Grammar]:
    """A grammar for each function. If the grammar of all does not compile, one of these says why.

    Raises:
        GrammarError: a schema is too large.
    """
    return [
        Grammar.json_schema(callee.arguments(), function.param)
        for function in use.callable
        if (callee := _callee(function, use)).schema is not None
    ]


def _callee(function: Function, use: ToolUse) -> Callee:
    is_constrained = use.required or function.strict
    schema = function.schema if is_constrained else None
    return Callee(function.name, schema, function.strict)


def _text_or_calls(
    grammar: Grammar,
    callees: Sequence[Callee],
    use: ToolUse,
    reading: Reading,
    control_id: Callable[[str], int | None],
) -> Grammar:
    """A grammar of reasoning, followed by text that `grammar` allows or by calls."""
    if use.required or (callees and grammar.kind != JSON_SCHEMA):
        raise InvalidRequestError(
            f"{grammar.param} and tools both constrain the answer; send one of them",
            param=grammar.param,
        )
    if grammar.kind != JSON_SCHEMA or not (callees or reading.marks):
        return grammar
    try:
        schema = from_json(grammar.text, allow_inf_nan=False)
    except ValueError:
        return grammar  # compiling it gives the error
    # The schema is unchanged, so that its references stay valid. Only objects have references.
    otherwise = schema if isinstance(schema, dict) else {"allOf": [schema]}
    text = answer_grammar(reading, callees, control_id, parallel=use.parallel, otherwise=otherwise)
    return Grammar.lark(text, grammar.param)
