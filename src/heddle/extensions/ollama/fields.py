"""Fields that several routes of Ollama's API share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, Tag, create_model
from pydantic_core import PydanticCustomError

from heddle.errors import InvalidRequestError
from heddle.parameters import Api
from heddle.server.generate.parameters import SamplingSchema, offers
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import shaped
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema

if TYPE_CHECKING:
    from starlette.types import Scope

    from heddle.server.generate.service import Served

S = TypeVar("S", bound=Schema)

ModelName = Annotated[str, Field(min_length=1)]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_STEP = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)"
_DURATION = rf"[-+]?(?:0|(?:{_STEP})+)"


def _checked(value: float | str) -> float | str:
    if isinstance(value, str) and not re.fullmatch(_DURATION, value):
        raise PydanticCustomError(
            "heddle_duration",
            "Input should be a number of seconds or a duration such as '5m' or '1h30m'",
        )
    return value


KeepAlive = Annotated[
    Annotated[float, Tag("<int>")]
    | Annotated[float, Tag("<float>")]
    | Annotated[
        str,
        AfterValidator(_checked),
        Field(json_schema_extra={"pattern": f"^{_DURATION}$"}),
        Tag("<str>"),
    ],
    shaped("a number of seconds or a duration such as '5m'"),
]
"""How long a model stays loaded after a request: seconds, or a duration in Go's syntax."""


def seconds_of(keep_alive: float | str) -> float:
    """The seconds that a `KeepAlive` means; negative: for ever."""
    if not isinstance(keep_alive, str):
        return keep_alive
    seconds = sum(float(count) * _UNITS[unit] for count, unit in re.findall(_STEP, keep_alive))
    return -seconds if keep_alive.startswith("-") else seconds


class NamingBody(Schema):
    """A body that names a model. `name` is the older name of `model`."""

    model: Annotated[str, Field(min_length=1)] | None = None
    name: str | None = None

    def named(self) -> str:
        """The name.

        Raises:
            InvalidRequestError: there is none.
        """
        if not (name := self.model or self.name):
            raise InvalidRequestError("missing required parameter: model", param="model")
        return name


Format = Annotated[
    Annotated[Literal["", "json"], Tag("<str>")] | Annotated[dict[str, Any], Tag("<dict>")],
    shaped("'json' or a JSON schema"),
]
Think = Annotated[
    Annotated[bool, Tag("<bool>")]
    | Annotated[Literal["low", "medium", "high", "max"], Tag("<str>")],
    shaped("true, false, 'low', 'medium', 'high' or 'max'"),
]


@decided(Api.OLLAMA, "options")
@offers(Api.OLLAMA)
class Options(SamplingSchema):
    """`options` of a request that generates.

    A negative `num_predict` is no limit. A `seed` of -1 is a random seed. A model has the context
    of the server's settings, and the server refuses a prompt that does not fit.
    """

    num_predict: int | None = None
    num_ctx: int | None = None


BESIDE = {
    **{name: name for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")},
    "stop": "stop",
    "max_tokens": "num_predict",
    "max_output_tokens": "num_predict",
}
"""Sampling parameters that clients write beside `options`, each with its name in `options`."""


def takes_parameters(schema: type[S]) -> type[S]:
    """A decorator that adds the fields of `BESIDE` to the schema of a body."""
    fields: dict[str, Any] = {
        name: (Options.model_fields[option].annotation, None) for name, option in BESIDE.items()
    }
    complete: type[S] = create_model(
        schema.__name__,
        __base__=schema,
        __module__=schema.__module__,
        __doc__=schema.__doc__,
        **fields,
    )
    return complete


def note_context(options: Options, served: Served, scope: Scope) -> None:
    """Note `num_ctx` as ignored if it is longer than the context of the model, as served here."""
    if options.num_ctx is not None and options.num_ctx > served.engine.context:
        record_of(scope).ignored.append("options.num_ctx")
