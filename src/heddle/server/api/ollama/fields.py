"""Fields that several routes of Ollama's API share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag
from pydantic_core import PydanticCustomError

from heddle.errors import InvalidRequestError
from heddle.parameters import Api
from heddle.server.generate.parameters import SamplingSchema, offers
from heddle.server.http.fields import shaped
from heddle.server.http.hints import hint, ignore
from heddle.server.http.schema import Schema

if TYPE_CHECKING:
    from starlette.types import Scope

    from heddle.server.generate.service import Served

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


def _ignored(name: str, *neutral: object) -> AfterValidator:
    return hint(*neutral, path=f"options.{name}")


class LoadOptions(SamplingSchema):
    """Options that Ollama reads when it loads a model, or for context shifts. All are hints.

    A model has the context and the threads of the server's settings. The server refuses a prompt
    that does not fit the context. Ollama itself no longer reads the options of the last group.
    """

    num_ctx: int | None = None
    num_batch: Annotated[int | None, _ignored("num_batch")] = None
    num_gpu: Annotated[int | None, _ignored("num_gpu", -1)] = None
    main_gpu: Annotated[int | None, _ignored("main_gpu", 0)] = None
    num_thread: Annotated[int | None, _ignored("num_thread", 0)] = None
    use_mmap: Annotated[bool | None, _ignored("use_mmap")] = None
    num_keep: Annotated[int | None, _ignored("num_keep")] = None
    draft_num_predict: Annotated[int | None, _ignored("draft_num_predict")] = None

    numa: Annotated[bool | None, _ignored("numa", False)] = None
    low_vram: Annotated[bool | None, _ignored("low_vram", False)] = None
    f16_kv: Annotated[bool | None, _ignored("f16_kv", True)] = None
    logits_all: Annotated[bool | None, _ignored("logits_all", False)] = None
    vocab_only: Annotated[bool | None, _ignored("vocab_only", False)] = None
    use_mlock: Annotated[bool | None, _ignored("use_mlock", False)] = None
    embedding_only: Annotated[bool | None, _ignored("embedding_only", False)] = None
    tfs_z: Annotated[float | None, _ignored("tfs_z", 1.0, 1)] = None
    penalize_newline: Annotated[bool | None, _ignored("penalize_newline", True)] = None


def note_context(options: LoadOptions | None, served: Served, scope: Scope) -> None:
    """Note `num_ctx` as ignored if it is longer than the context of the model, as served here."""
    wanted = None if options is None else options.num_ctx
    if wanted is not None and wanted > served.engine.context:
        ignore(scope, "options.num_ctx")


@offers(Api.OLLAMA)
class Options(LoadOptions):
    """`options` of a request that generates: sampling parameters and hints.

    A negative `num_predict` is no limit. A `seed` of -1 is a random seed.
    """

    num_predict: int | None = None
