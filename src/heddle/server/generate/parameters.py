"""Sampling parameters in bodies: adds their fields to schemas, and reads them from bodies.

Both follow from the table `heddle.sampling_params.all_parameters`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import Field

from heddle.errors import InvalidRequestError
from heddle.parameters import (
    Api,
    Biases,
    BodyKind,
    Integer,
    Member,
    Members,
    Number,
    Processors,
    Salt,
    Speculation,
    Speculations,
    Strings,
    Switch,
    TokenIds,
)
from heddle.sampling_params import all_parameters
from heddle.server.http import fields as types
from heddle.server.http.schema import Schema, with_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydantic import BaseModel

    from heddle.parameters import Parameter, ValueKind
    from heddle.sampling_params import SamplingParams
    from heddle.server.generate.service import Served
    from heddle.text.tokenizer.tokenizer import Tokenizer


class SamplingSchema(Schema):
    """A body with sampling parameters.

    Attributes:
        offered: the parameters with their names in the body. :func:`offers` sets it.
    """

    offered: ClassVar[tuple[tuple[Parameter, tuple[str, ...]], ...]]


S = TypeVar("S", bound=SamplingSchema)

_MOST_BIASES = 16_384
"""Most tokens of a logit bias. Each token takes 100 bytes until the request ends."""
_NUMBER = re.compile(r"[+-]?[0-9]+")
_LONGEST_ID = 9


def offers(api: Api) -> Callable[[type[S]], type[S]]:
    """A decorator that adds the sampling parameters of `api` to a schema, under all their names.

    Fields that the schema itself declares do not change. They may accept fewer values.
    """

    def extended(schema: type[S]) -> type[S]:
        offered = tuple((row, names) for row in all_parameters() if (names := row.names(api)))
        fields: dict[str, Any] = {
            name: (Annotated[_body_type(row.kind) | None, Field(description=row.doc)], None)
            for row, names in offered
            for name in names
            if name not in schema.model_fields
        }
        complete = with_fields(schema, fields)
        complete.offered = offered
        return complete

    return extended


def _body_type(kind: ValueKind) -> Any:
    """The type of a field in JSON for a kind of parameter.

    `SamplingParams` checks ranges for all callers. The schema only describes the ranges. It checks
    the lengths of lists itself, before the elements are validated.
    """
    match kind:
        case Integer():
            return Annotated[int, Field(json_schema_extra=kind.json_schema())]
        case Number():
            return Annotated[float, Field(json_schema_extra=kind.json_schema())]
        case Switch():
            return bool
        case Salt():
            return str
        case Strings(or_one=True):
            return types.string_or_strings(kind.most)
        case Strings():
            return Annotated[types.Strings, Field(max_length=kind.most)]
        case TokenIds():
            return Annotated[types.TokenIds, Field(max_length=kind.most)]
        case Members():
            return types.string_or_strings(len(kind.of))
        case Member():
            return Annotated[str, Field(json_schema_extra={"enum": list(kind.values)})]
        case Processors():
            return types.processors(kind.most)
        case Speculations():
            return types.speculation(Speculation.MOST)
        case Biases():
            return types.biases(_MOST_BIASES)
        case BodyKind():
            return kind.body_type
    raise TypeError(f"no JSON form is known for {kind!r}")


def parameters_of(body: SamplingSchema, tokenizer: Tokenizer) -> dict[str, Any]:
    """The sampling parameters in a body, as keyword arguments of `SamplingParams`.

    Raises:
        InvalidRequestError: two names of a parameter have different values, or the bias of a token
            is not served.
    """
    fields = {}
    for row, names in body.offered:
        sent = [name for name in names if name in body.model_fields_set]
        if not sent:
            continue
        value = getattr(body, sent[0]) if len(sent) == 1 else agreed(body, *sent)
        if value is not None:
            is_plain = isinstance(row.kind, Number)
            fields[row.name] = value if is_plain else _value(value, row.kind, row.name, tokenizer)
    return fields


def sampling_params(body: SamplingSchema, served: Served, **more: Any) -> SamplingParams:
    """The sampling parameters of a body, with the defaults of the server and of the model.

    Args:
        body: the request's body.
        served: has the model.
        more: keyword arguments of `SamplingParams` for parameters that no field of the body has.

    Raises:
        InvalidRequestError: a value is out of range; or see :func:`parameters_of`.
    """
    given = parameters_of(body, served.engine.model.tokenizer)
    return served.sampling_params(**given, **more)


def agreed(body: BaseModel, *names: str) -> Any:
    """The value of a field with several names; None if the body has none of `names`.

    Raises:
        InvalidRequestError: the names have different values.
    """
    return one_value([(name, getattr(body, name)) for name in names])[1]


def one_value(fields: Sequence[tuple[str, Any]]) -> tuple[str, Any]:
    """The first of `fields` whose value is not None, with its name; else "" and None.

    Raises:
        InvalidRequestError: another field has a different value.
    """
    given = [(name, value) for name, value in fields if value is not None]
    if not given:
        return "", None
    (first, value), *others = given
    for name, other in others:
        if other != value:
            raise InvalidRequestError(
                f"{first} ({value}) and {name} ({other}) differ; send one of them", param=name
            )
    return first, value


def _value(value: Any, kind: ValueKind, name: str, tokenizer: Tokenizer) -> object:
    """Convert the value in a body to the type that `SamplingParams` accepts."""
    if isinstance(kind, Biases):
        pairs = value.items() if isinstance(value, dict) else value
        return _by_token(pairs, kind, name, tokenizer)
    return (value,) if isinstance(kind, Strings) and isinstance(value, str) else value


def _by_token(
    pairs: Iterable[tuple[int | str, float]], kind: Biases, name: str, tokenizer: Tokenizer
) -> dict[int, float]:
    """The sum of the biases of each token, within the range of one bias.

    Texts that share a token may all have the largest bias. So a sum out of range is no fault.

    Raises:
        InvalidRequestError: a bias is out of range, a text that looks like a number is no token id,
            or the texts have too many tokens.
    """
    biases: dict[int, float] = {}
    for key, value in pairs:
        bias = kind.bias(value, name)
        for id in _ids_of(key, name, tokenizer):
            biases[id] = biases.get(id, 0.0) + bias
        if len(biases) > _MOST_BIASES:
            raise InvalidRequestError(
                f"the texts in {name} have more than {_MOST_BIASES:,} tokens; send fewer",
                param=name,
            )
    return {id: kind.nearest(total) for id, total in biases.items()}


def _ids_of(key: int | str, name: str, tokenizer: Tokenizer) -> Sequence[int]:
    """The token ids that a key of a logit bias means: an id, or a text with one or more tokens.

    Raises:
        InvalidRequestError: the key is a number, but no token id.
    """
    if isinstance(key, int):
        return (key,)
    if not _NUMBER.fullmatch(key):
        return tokenizer.encode(key, add_special=False, parse_special=False)
    if not key.isdecimal() or len(key) > _LONGEST_ID:
        raise InvalidRequestError(f"{name} has no token of id {key!r}; send token ids", param=name)
    return (int(key),)
