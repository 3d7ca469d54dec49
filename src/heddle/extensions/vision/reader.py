"""Reads the pictures of a request, or that of a program: the value for the core's door."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import reprlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from PIL import Image

from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.extensions.vision.fetching import fetched
from heddle.extensions.vision.reading import OpenedPicture, picture_of_image
from heddle.extensions.vision.settings import FetchSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.config import ServerConfig
    from heddle.pictures import Picture
    from heddle.sent_pictures import SentPicture

MOST_PICTURES = 64
"""Most pictures of a request."""
MOST_PIXELS_TOGETHER = 128_000_000
"""Most pixels of all pictures of a request: 0.4 GB as RGB."""

_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\r\n]+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Reader:
    """Reads pictures; see :class:`heddle.sent_pictures.PictureReader`."""

    def read(self, sent: Sequence[SentPicture], config: ServerConfig) -> list[Picture]:
        """The pictures of one request."""
        if len(sent) > MOST_PICTURES:
            raise InvalidRequestError(
                f"the request has {len(sent)} pictures; it may have {MOST_PICTURES}. Send fewer",
                param=sent[MOST_PICTURES].param,
            )
        addresses = [one for one in sent if _is_address(one)]
        if addresses and not config.of(FetchSettings).allow_image_urls:
            raise UnsupportedParameterError(
                f"{addresses[0].param} is an address, and this server fetches no pictures. Send it"
                " as data:image/png;base64,..., or start the server with --allow-image-urls",
                param=addresses[0].param,
            )
        files = {one: _file_in(one) for one in sent if not _is_address(one)}  # first: it is quick
        files |= asyncio.run(fetched(addresses)) if addresses else {}
        opened = [OpenedPicture(files[one], one.param) for one in sent]
        total = sum(one.pixels for one in opened)
        if total > MOST_PIXELS_TOGETHER:
            raise InvalidRequestError(
                f"the pictures of the request have {total:,} pixels together; they may have"
                f" {MOST_PIXELS_TOGETHER:,}. Send them smaller, or fewer",
                param=sent[-1].param,
            )
        return [one.read() for one in opened]

    def take(self, given: object, param: str) -> Picture:
        """The picture that a program gives."""
        if isinstance(given, Image.Image):
            return picture_of_image(given, param)
        if isinstance(given, str | Path):
            try:
                given = Path(given).read_bytes()
            except OSError as error:
                raise InvalidRequestError(
                    f"{param} cannot be read: {error}. Give the path of a picture", param=param
                ) from error
        if not isinstance(given, bytes):
            raise InvalidRequestError(
                f"{param} must be an image of Pillow, the bytes of its file or a path, got"
                f" {type(given).__name__}",
                param=param,
            )
        return OpenedPicture(given, param).read()


READER = Reader()


def _is_address(sent: SentPicture) -> bool:
    return not sent.is_base64 and _ADDRESS.match(sent.source) is not None


def _file_in(sent: SentPicture) -> bytes:
    """The file in a data URL or in base64.

    Raises:
        InvalidRequestError: it is neither.
    """
    source = sent.source
    if source[:5].lower() == "data:":
        head, comma, data = source.partition(",")
        if not comma:
            raise _refused(sent, "is a data URL without a comma before its data")
        if not head.lower().endswith(";base64"):
            return unquote_to_bytes(data)
        return _decoded(sent, data)
    if sent.is_base64:
        return _decoded(sent, source)
    scheme = _SCHEME.match(source[:40])
    if scheme is not None:
        raise _refused(sent, f"has the scheme {scheme[1]!r}, which this server does not read")
    raise _refused(sent, f"is neither a data URL nor an address, got {reprlib.repr(source)}")


def _decoded(sent: SentPicture, text: str) -> bytes:
    try:  # MIME's lines and a lacking end are common; other characters are mistakes
        text = _SPACE.sub("", unquote_to_bytes(text).decode() if "%" in text else text)
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise _refused(sent, "is no base64") from None


def _refused(sent: SentPicture, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{sent.param} {why}. Send data:image/png;base64, and then the file in base64"
        if not sent.is_base64
        else f"{sent.param} {why}. Send the file in base64",
        param=sent.param,
    )
