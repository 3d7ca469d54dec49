"""Sampling parameters in bodies: adds their fields to schemas, and reads them from bodies.

Both follow from the table `heddle.types.PARAMETERS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import Field, create_model

from heddle.errors import InvalidRequestError
from heddle.parameters import Api, Biases, Integer, Members, Number, Salt, Strings, Switch, TokenIds
from heddle.server.http import fields as types
from heddle.server.http.schema import Schema
from heddle.types import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.parameters import Kind, Parameter
    from heddle.server.generate.service import Served
    from heddle.types import SamplingParams


class SamplingSchema(Schema):
    """A body with sampling parameters.

    Attributes:
        offered: the parameters with their names in the body. :func:`offers` sets it.
    """

    offered: ClassVar[tuple[tuple[Parameter, tuple[str, ...]], ...]]


S = TypeVar("S", bound=SamplingSchema)

_MOST_BIASES = 16_384
"""Most tokens of a logit bias. Each token takes 100 bytes until the request ends."""


def offers(api: Api) -> Callable[[type[S]], type[S]]:
    """A decorator that adds the sampling parameters of `api` to a schema, under all their names.

    Fields that the schema itself declares do not change. They may accept fewer values.
    """

    def extended(schema: type[S]) -> type[S]:
        offered = tuple((row, names) for row in PARAMETERS if (names := row.names(api)))
        fields: dict[str, Any] = {
            name: (Annotated[_body_type(row.kind) | None, Field(description=row.doc)], None)
            for row, names in offered
            for name in names
            if name not in schema.model_fields
        }
        complete = create_model(
            schema.__name__,
            __base__=schema,
            __module__=schema.__module__,
            __doc__=schema.__doc__,
            **fields,
        )
        complete.offered = offered
        return complete

    return extended


def _body_type(kind: Kind) -> Any:
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
            return Annotated[types.Strings, Field(max_length=len(kind.of))]
        case Biases():
            ids = Field(json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,9}$"}})
            return Annotated[dict[str, float], Field(max_length=_MOST_BIASES), ids]
    raise TypeError(f"no JSON form is known for {kind!r}")


def parameters_of(body: SamplingSchema) -> dict[str, Any]:
    """The sampling parameters in a body, as keyword arguments of `SamplingParams`.

    Raises:
        InvalidRequestError: two names of a parameter have different values, or a key of a bias is
            not a token id.
    """
    fields = {}
    for row, names in body.offered:
        value = agreed(body, *names)
        if value is not None:
            fields[row.name] = _value(value, row.kind, row.name)
    return fields


def sampling_params(body: SamplingSchema, served: Served, **more: Any) -> SamplingParams:
    """The sampling parameters of a body. Parameters that it leaves out get the model's defaults.

    Args:
        body: the request's body.
        served: has the model.
        more: keyword arguments of `SamplingParams` for parameters that no field of the body has.

    Raises:
        InvalidRequestError: a value is out of range; or see :func:`parameters_of`.
    """
    return served.engine.model.sampling_params(**parameters_of(body), **more)


def agreed(body: SamplingSchema, *names: str) -> Any:
    """The value of a field with several names; None if the body has none of `names`.

    Raises:
        InvalidRequestError: the names have different values.
    """
    given = [(name, value) for name in names if (value := getattr(body, name)) is not None]
    if not given:
        return None
    (first, value), *others = given
    for name, other in others:
        if other != value:
            raise InvalidRequestError(
                f"{first} ({value}) and {name} ({other}) differ; send one of them", param=name
            )
    return value


def _value(value: Any, kind: Kind, name: str) -> object:
    """Convert the value in a body to the type that `SamplingParams` accepts."""
    if isinstance(kind, Biases):
        return _by_token(value, name)
    return (value,) if isinstance(kind, Strings) and isinstance(value, str) else value


def _by_token(bias: Mapping[str, float], name: str) -> dict[int, float]:
    for key in bias:
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise InvalidRequestError(f"{name} keys must be token ids, got {key!r}", param=name)
    return {int(key): value for key, value in bias.items()}
