"""The table of all fields that vendors document, and the schemas made from it.

One row decides about one field: the server serves it, accepts it without effect, or refuses it by
name. It accepts a field without effect only if an answer without it is not wrong: the field asks
for speed, price, effort, storage or bookkeeping. `docs/reference/fields.md` is made from the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

from pydantic import BaseModel, Field

from heddle.doors import extensions, refer
from heddle.server.generate.vendor_fields import openai
from heddle.server.generate.vendor_fields.row import Outcome
from heddle.server.http.fields import only
from heddle.server.http.hints import hint
from heddle.server.http.schema import with_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.parameters import Api
    from heddle.server.generate.vendor_fields.row import Row

S = TypeVar("S", bound=BaseModel)

VENDORS: Mapping[str, tuple[Row, ...]] = {"OpenAI": openai.ROWS} | {
    vendor: refer(rows)
    for extension in extensions().values()
    for vendor, rows in extension.fields.items()
}
"""The rows by the vendor that documents the field. A field of several vendors has one row."""

_BOUNDS = (
    *("stop", "stop_sequences", "stop_token_ids", "stop_words", "stop_strings"),
    *("bad_words", "logit_bias", "min_tokens", "ignore_eos", "logits_processors"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "max_new_tokens"),
)
"""Sampling parameters that bound an answer, also those of APIs that this server lacks."""

CONSTRAINTS = frozenset(_BOUNDS) | {
    row.name for rows in VENDORS.values() for row in rows if row.constrains
}
"""Names of the fields that the server never ignores, see `Row.constrains`."""


def rows_of(api: Api, within: str = "") -> list[Row]:
    """The rows of the fields of `api`, in the body or in the objects at the path `within`."""
    return [
        row for rows in VENDORS.values() for row in rows if row.apis & api and row.within == within
    ]


def decided(api: Api, within: str = "") -> Callable[[type[S]], type[S]]:
    """A decorator that adds the ignored and the refused fields of `api` to a schema.

    The schema itself declares the fields that the server serves.

    Args:
        api: the API; several for a schema of an object that several APIs have.
        within: path of the objects that the schema describes; empty: the body.
    """

    def extended(schema: type[S]) -> type[S]:
        fields: dict[str, Any] = {
            row.name.replace(".", "_"): _field(row)
            for row in rows_of(api, within)
            if row.outcome is not Outcome.SERVED
        }
        return with_fields(schema, fields)

    return extended


def _field(row: Row) -> tuple[Any, Any]:
    """The type and the default of the field of a schema."""
    alias = row.name if "." in row.name else None
    kind: Any
    if row.outcome is Outcome.REFUSED:
        dropped = "" if row.constrains else row.path
        kind = Annotated[Any, only(*row.neutral, instead=row.instead, dropped=dropped)]
        return kind, Field(None, alias=alias)
    kind = Annotated[Optional[row.kind], hint(*row.neutral, path=row.path)]  # noqa: UP045  a value
    return kind, Field(None, alias=alias, description=f"Without effect: {row.doc}.")
