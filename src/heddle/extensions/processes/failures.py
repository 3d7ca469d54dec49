"""Errors as parts of messages: they arrive with their types and attributes."""

from __future__ import annotations

from heddle import errors
from heddle.errors import EngineFailedError, HeddleError
from heddle.extensions.processes.children.messages import Part

Attribute = str | int | float | dict[str, float | None] | None


class Failure(Part, frozen=True):
    """An error of `heddle.errors`.

    Attributes:
        kind: the name of its class.
        attributes: those that it has, not those of its class.
        notes: where it was raised.
    """

    kind: str
    message: str
    attributes: dict[str, Attribute]
    notes: list[str]

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure of an error. An error of another library becomes an EngineFailedError."""
        notes = getattr(error, "__notes__", [])
        if not isinstance(error, HeddleError):
            error = EngineFailedError(f"{type(error).__name__}: {error}")
        kind = next(one.__name__ for one in type(error).__mro__ if _known(one.__name__) is one)
        own = {name: value for name, value in vars(error).items() if name != "__notes__"}
        return cls(kind, error.message, own, notes)

    @property
    def error(self) -> HeddleError:
        """The error again."""
        kind = _known(self.kind) or EngineFailedError
        error = kind.__new__(kind, self.message)
        vars(error).update(self.attributes)
        for note in self.notes:
            error.add_note(note)
        return error


def _known(name: str) -> type[HeddleError] | None:
    kind = vars(errors).get(name)
    return kind if isinstance(kind, type) and issubclass(kind, HeddleError) else None
