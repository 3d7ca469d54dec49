"""Unknown fields of a body under `--lenient`: ignored, and named in the answer's Warning header.

Load generators and old clients send fields that no one here knows. Values that are wrong, and
fields that are known and not supported, are refused as ever. So are constraints: an answer without
the `grammar` that its request sent would be wrong, and nobody would know.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, create_model
from starlette.datastructures import MutableHeaders

from heddle.server.http.fields import only
from heddle.server.http.hints import ignored

if TYPE_CHECKING:
    from pydantic import ValidationError
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


def parse_leniently(raw: bytes, schema: type[S], error: ValidationError, scope: Scope) -> S:
    """The body without its unknown fields, after `error` was found with them.

    Raises:
        pydantic.ValidationError: something else is wrong.
    """
    _constraints_beside(schema).model_validate_json(raw, extra="ignore")
    parsed = schema.model_validate_json(raw, extra="ignore", context=ignored(scope))
    few = error.error_count() <= _MOST_FAULTS
    names = _names(error) if few else ["too many to name"]
    scope[_UNKNOWN].extend(names[:_MOST_NAMED])
    ignored(scope).extend(names[:_MOST_NAMED])
    return parsed


@cache
def _constraints_beside(schema: type[BaseModel]) -> type[BaseModel]:
    """A body of all constraints that `schema` does not serve, each refused unless it is empty."""
    served = {field.alias or name for name, field in schema.model_fields.items()}
    nothing = Annotated[Any, only(False, "", [], {})]
    fields: dict[str, Any] = dict.fromkeys(_CONSTRAINTS - served, (nothing, None))
    return create_model("Constraints", **fields)


def _names(error: ValidationError) -> list[str]:
    """Names of the unknown fields, each once, of characters and a length that a header may have."""
    found = (
        str(fault["loc"][-1])
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
        if fault["type"] == "extra_forbidden"
    )
    return list(dict.fromkeys(_HARMLESS.sub("?", name[:40]) for name in found))
