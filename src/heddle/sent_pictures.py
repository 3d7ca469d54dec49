"""Pictures as requests and programs send them, and who reads them: the extension with the door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from heddle.doors import extensions, refer
from heddle.errors import UnsupportedParameterError
from heddle.pictures import Picture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.config import ServerConfig


@dataclass(frozen=True, slots=True)
class SentPicture:
    """A picture in a request that nobody has read yet.

    Attributes:
        source: a data URL or an address; the file in base64 if `is_base64`.
        param: the field that has it.
        is_base64: whether `source` is base64 without a data URL around it.
    """

    source: str
    param: str
    is_base64: bool = False


class PictureReader(Protocol):
    """Reads pictures. Any thread may call it."""

    def read(self, sent: Sequence[SentPicture], config: ServerConfig) -> list[Picture]:
        """The pictures of one request. It may take seconds.

        Raises:
            InvalidRequestError: one is no picture, they are too large or too many, or the settings
                do not allow an address.
            OutOfMemoryError: too little memory is left for them.
        """
        ...

    def take(self, given: object, param: str) -> Picture:
        """The picture that a program gives: an image of Pillow, the bytes of a file, or a path.

        Raises:
            InvalidRequestError: it is no picture, or too large.
        """
        ...


def picture_reader() -> PictureReader:
    """The reader of the extension that brings one.

    Raises:
        UnsupportedParameterError: none does.
    """
    for extension in extensions().values():
        if extension.picture_reader:
            return cast("PictureReader", refer(extension.picture_reader))
    raise UnsupportedParameterError(
        "this installation reads no pictures: no extension brings a reader", param="messages"
    )


def with_pictures(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Messages of a program, whose images become pictures.

    Raises:
        InvalidRequestError: an image cannot be read.
        UnsupportedParameterError: no extension reads pictures.
    """
    read: list[Mapping[str, Any]] = []
    for place, message in enumerate(messages):
        parts = message.get("content")
        if isinstance(parts, list):
            path = f"messages[{place}].content"
            parts = [_read(part, f"{path}[{number}]") for number, part in enumerate(parts)]
            read.append({**message, "content": parts})
        else:
            read.append(message)
    return read


def _read(part: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    if part["type"] != "image" or isinstance(part["image"], Picture):
        return part
    return {**part, "image": picture_reader().take(part["image"], f"{path}.image")}
