"""Unknown fields of a body under `--lenient`: ignored, and named in the answer's Warning header.

Load generators and old clients send fields that no one here knows. Values that are wrong, and
fields that are known and not supported, are refused as ever. So are constraints: an answer without
the `grammar` that its request sent would be wrong, and nobody would know.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel
from starlette.datastructures import MutableHeaders

from heddle.errors import UnsupportedParameterError
from heddle.server.http.hints import ignored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

S = TypeVar("S", bound=BaseModel)

_UNKNOWN = "heddle.unknown_fields"
"""Where a request's ASGI scope has the list of unknown fields."""
_CONSTRAINTS = frozenset(
    (
        *("grammar", "json_schema", "ebnf", "regex", "structural_tag", "structured_outputs"),
        *("response_format", "format", "output_format", "output_config", "text"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        *("guided_whitespace_pattern", "grammar_lazy", "grammar_triggers"),
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
        *("stop", "stop_sequences", "stop_words", "stop_regex", "stop_token_ids", "stop_strings"),
        *("include_stop_str_in_output", "bad_words", "bad_words_ids", "allowed_token_ids"),
        *("logit_bias", "min_tokens", "ignore_eos", "logits_processors"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"),
        *("n_predict", "truncate_prompt_tokens", "lora", "lora_path", "continue_final_message"),
    )
)
"""Fields of any vendor that say what an answer must be. Dropping one would make an answer wrong."""
_MOST_NAMED = 20
_MOST_FAULTS = 1000
_HARMLESS = re.compile(r"[^A-Za-z0-9_.-]")


class WarnOfUnknown:
    """Adds the header to answers whose request had unknown fields."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        unknown: list[str] = []

        async def send_with_warning(message: Message) -> None:
            if message["type"] == "http.response.start" and unknown:
                text = f'299 heddle "ignored unknown parameters: {", ".join(unknown)}"'
                MutableHeaders(scope=message)["warning"] = text
            await send(message)

        await self._app({**scope, _UNKNOWN: unknown}, receive, send_with_warning)


def parse_leniently(raw: bytes, schema: type[S], scope: Scope) -> S:
    """The body without its unknown fields.

    Raises:
        pydantic.ValidationError: something else is wrong.
        UnsupportedParameterError: one of the unknown fields is a constraint, wherever it is.
    """
    names = [
        _checked(name, value)
        for name, value in _unknown(schema.model_validate_json(raw, extra="allow"))
    ]
    parsed = schema.model_validate_json(raw, extra="ignore", context=ignored(scope))
    shown = ["too many to name"]
    if len(names) <= _MOST_FAULTS:
        shown = [*dict.fromkeys(_HARMLESS.sub("?", name[:40]) for name in names)][:_MOST_NAMED]
    scope[_UNKNOWN].extend(shown)
    ignored(scope).extend(shown)
    return parsed


def _unknown(value: object) -> Iterator[tuple[str, object]]:
    """Unknown fields of a body and of the objects in it, with their values."""
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for one in value:
            yield from _unknown(one)
    if isinstance(value, BaseModel):
        for one in vars(value).values():
            yield from _unknown(one)
        yield from (value.model_extra or {}).items()


def _checked(name: str, value: object) -> str:
    """The name of an unknown field that may be ignored."""
    says_nothing = value is False or value in (None, "", [], {})  # but 0 does
    if name in _CONSTRAINTS and not says_nothing:
        raise UnsupportedParameterError(
            f"{name} is not supported by this server, and an answer without it could be wrong;"
            " leave it out",
            param=name,
        )
    return name
