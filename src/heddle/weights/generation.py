"""The sampling parameters that a model's files recommend: names and checks for all formats.

A reader gives the values as the files have them, by the name of the sampling parameter. They apply
where a request does not say (:meth:`heddle.loading.loaded_model.LoadedModel.sampling_params`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError, ModelFileError
from heddle.sampling_params import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROWS = {row.name: row for row in PARAMETERS}


@dataclass(frozen=True, slots=True)
class Recommended:
    """Sampling parameters as the files of a model have them, unchecked.

    Attributes:
        values: by name of the sampling parameter.
        labels: the file's own name of each, for errors.
        source: the file.
    """

    values: Mapping[str, object]
    labels: Mapping[str, str]
    source: str

    def checked(self) -> dict[str, object]:
        """Keywords of `SamplingParams`.

        Raises:
            ModelFileError: a value is of another kind or out of range.
        """
        found = {}
        for name, value in self.values.items():
            label = self.labels[name]
            try:
                found[name] = _ROWS[name].kind.take(value, label)
            except InvalidRequestError as error:
                raise ModelFileError(
                    f"{self.source}: {error.message}. Correct it, or start with"
                    " --generation-config none, which ignores it",
                    field=label,
                ) from None
        return found


def recommended(values: Mapping[str, object], names: Mapping[str, str], source: str) -> Recommended:
    """The parameters among the `values` of a file.

    Args:
        values: values of the file, by its own names. None counts as left out.
        names: names of sampling parameters, by the file's own names.
        source: the file.
    """
    labels = {name: key for key, name in names.items() if values.get(key) is not None}
    return Recommended({name: values[key] for name, key in labels.items()}, labels, source)
