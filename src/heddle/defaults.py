"""Sampling parameters as settings of a server: which there are, and how to read their texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.errors import ConfigError, InvalidRequestError
from heddle.parameters import Integer, Members, Number
from heddle.sampling_params import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.parameters import Parameter

_NOT_SETTINGS = {"priority", "id_slot"}
"""The parameter with another setting (`min_priority`), and the slot of a request."""

SETTINGS: Mapping[str, Parameter] = {
    row.name: row
    for row in PARAMETERS
    if isinstance(row.kind, (Number, Members)) and row.apis and row.name not in _NOT_SETTINGS
}
"""The parameters that are settings, by name: numbers, and the list of samplers."""


def parsed(name: str, text: str, source: str) -> object:
    """The value of a parameter that `text` means.

    Raises:
        ConfigError: `text` has the wrong form or its value is out of range; the message names
            `source`.
    """
    try:
        return SETTINGS[name].kind.take(_value(SETTINGS[name], text), name)
    except ValueError:
        raise ConfigError(f"{source}: {text!r} is not a number", param=name) from None
    except InvalidRequestError as error:
        raise ConfigError(f"{source}: {error.message}", param=name) from None


def _value(row: Parameter, text: str) -> object:
    if isinstance(row.kind, Integer):
        return int(text)
    if isinstance(row.kind, Number):
        return float(text)
    assert isinstance(row.kind, Members)
    names = [part.strip() for part in text.split(",")]
    return text if len(names) == 1 and text not in row.kind.names else names


def checked(values: Mapping[str, Any]) -> dict[str, object]:
    """The values of parameters by name, in the form that `SamplingParams` stores.

    Raises:
        ConfigError: a parameter is not a setting, or its value is out of range.
    """
    for name in values:
        if name not in SETTINGS:
            raise ConfigError(
                f"sampling has {name!r}; it takes {', '.join(SETTINGS)}", param="sampling"
            )
    try:
        return {name: SETTINGS[name].kind.take(value, name) for name, value in values.items()}
    except InvalidRequestError as error:
        raise ConfigError(error.message, param="sampling") from None
