"""Reads the files of pictures: from bytes to pixels, within bounds of memory and time.

A file says its size in its header. The size is checked before anything of the picture is decoded.
The pixels are those of `transformers.image_utils.load_image`: upright by the orientation in EXIF,
then `convert("RGB")` of Pillow, on white. Grey of 16 bits is the exception: Pillow
would cut it to white, so its upper 8 bits count.
"""

from __future__ import annotations

import struct
import threading
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from heddle.errors import InvalidRequestError, OutOfMemoryError
from heddle.pictures import Picture
from heddle.process_memory import available_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from PIL.ImageFile import ImageFile

MOST_PIXELS = 64_000_000
"""Most pixels of a picture. Phones make up to 50 million. They take 0.2 GB as RGB, and a file of
8 kB may hold them."""


class _Jpeg(JpegImageFile):
    """A JPEG whose EXIF is not read for the dots per inch, because Pillow may warn of it."""

    def _read_dpi_from_exif(self) -> None:
        pass


_FORMATS: Mapping[bytes, type[ImageFile]] = {
    b"\x89PNG\r\n\x1a\n": PngImageFile,
    b"\xff\xd8\xff": _Jpeg,
    b"RIFF": WebPImageFile,
    b"GIF8": GifImageFile,
    b"BM": BmpImageFile,
}
"""What reads a file, by its first bytes. TIFF is not among them: clients seldom send it, and its
many codecs would be open to requests. `Image.open` would warn of sizes that are checked here, and a
filter of warnings is for all threads."""

_MOST_SCANS = 64
"""Most scans of a JPEG. Progressive files have about 10. Each scan takes time for all pixels, and
may take 50 bytes of the file."""

_BYTES_A_PIXEL = 28
"""Memory that reading takes for a moment: a WebP that is decoded, converted and hashed."""

_ONE = threading.Lock()
"""Held while a picture is decoded, so that each check of the memory is true."""

_ORIENTATION = 0x0112
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
"""Bytes of a value in EXIF, by the number of its type."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture upright, by its orientation in EXIF."""


class OpenedPicture:
    """A file whose header is read.

    Attributes:
        pixels: the number of its pixels.
    """

    def __init__(self, data: bytes, param: str) -> None:
        """Read the header of a file from the field `param`.

        Raises:
            InvalidRequestError: it is no picture of a known format, or too large.
        """
        self._param = param
        _check_kind(data, param)
        with _refusing(param):
            reader = next((one for begin, one in _FORMATS.items() if data.startswith(begin)), None)
            if reader is None:
                raise UnidentifiedImageError
            self._image = reader(BytesIO(data), "")
        self.pixels = _checked(self._image.size, param)

    def read(self) -> Picture:
        """Decode the picture.

        Raises:
            InvalidRequestError: the file is damaged.
            OutOfMemoryError: too little memory is available.
        """
        with _ONE:
            needed, available = self.pixels * _BYTES_A_PIXEL, available_bytes()
            if needed > available:
                raise OutOfMemoryError(
                    f"{self._param} may need {needed / 1e6:,.0f} MB of memory;"
                    f" {available / 1e6:,.0f} MB are available. Send a smaller picture, or try"
                    " again later",
                    param=self._param,
                )
            with _refusing(self._param):
                return _picture_of(self._image)


def picture_of_image(image: Image.Image, param: str) -> Picture:
    """The picture of an image of Pillow.

    Raises:
        InvalidRequestError: it is damaged, or too large.
    """
    _checked(image.size, param)
    with _refusing(param):
        return _picture_of(image)


def _picture_of(image: Image.Image) -> Picture:
    image.load()
    turn = _TURNS.get(_orientation(image))
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if turn is not None:
        image = image.transpose(turn)
    return Picture.of(np.asarray(_opaque(image)))


def _orientation(image: Image.Image) -> int:
    """The orientation in EXIF; 1 if EXIF is damaged, which does not damage the picture."""
    try:
        exif = image.info.get("exif", b"")
        found = image.getexif().get(_ORIENTATION, 1) if _is_whole(exif) else 1
    except Exception:  # many kinds
        return 1
    return found if isinstance(found, int) else 1


def _is_whole(exif: bytes) -> bool:
    """Whether the entries of EXIF have their values. Pillow would warn of those that have not."""
    exif = exif.removeprefix(b"Exif\0\0")
    if not exif:
        return True
    order = {b"II": "<", b"MM": ">"}[exif[:2]]
    begin = int(struct.unpack_from(f"{order}I", exif, 4)[0])
    count = int(struct.unpack_from(f"{order}H", exif, begin)[0])
    total = 0
    for place in range(begin + 2, begin + 2 + 12 * count, 12):
        tag, kind, values, where = struct.unpack_from(f"{order}HHII", exif, place)
        size = values * _TIFF_BYTES.get(kind, 0)
        total += size if size > 4 else 0
        if size > 4 and max(where + size, total) > len(exif):
            return False
        if tag == _ORIENTATION and values != 1:
            return False
    return begin + 2 + 12 * count + 4 <= len(exif)


def _opaque(image: Image.Image) -> Image.Image:
    """The image in RGB. What is transparent shows white, as `transformers` does it."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _checked(size: tuple[int, int], param: str) -> int:
    """The number of pixels.

    Raises:
        InvalidRequestError: it is 0, or too large.
    """
    width, height = size
    if 0 < width * height <= MOST_PIXELS:
        return width * height
    raise InvalidRequestError(
        f"{param} is a picture of {width} x {height} pixels; it may have {MOST_PIXELS:,}. Send it"
        " smaller",
        param=param,
    )


def _check_kind(data: bytes, param: str) -> None:
    """Check what Pillow would not, or only after it has taken memory or time.

    Raises:
        InvalidRequestError: it is an SVG, a WebP that is too large, or a JPEG of many scans.
    """
    if data.startswith(b"\xff\xd8") and data.count(b"\xff\xda") > _MOST_SCANS:
        raise InvalidRequestError(
            f"{param} is a JPEG of more than {_MOST_SCANS} scans; store it again", param=param
        )
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        _checked(_webp_size(data), param)  # its decoder takes memory for the picture at once
    start = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"<") and b"<svg" in start:
        raise InvalidRequestError(
            f"{param} is an SVG, which is no picture of pixels; render it to PNG first", param=param
        )


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height in the header of a WebP; (1, 1) if it is damaged, which Pillow finds."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 1, 1
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", body[6:10])
    return width & 0x3FFF, height & 0x3FFF


@contextmanager
def _refusing(param: str) -> Iterator[None]:
    """Turn whatever Pillow raises about a file into an error of the request.

    Raises:
        InvalidRequestError: Pillow refused the file.
        OutOfMemoryError: too little memory is left.
    """
    try:
        yield
    except MemoryError:
        raise OutOfMemoryError(
            f"too little memory is left to decode {param}; send a smaller picture", param=param
        ) from None
    except Exception as error:  # many kinds: struct.error, SyntaxError, EOFError, ...
        said = "is no picture" if isinstance(error, UnidentifiedImageError) else "is damaged"
        raise InvalidRequestError(
            f"{param} {said}, or of a format that is not read: PNG, JPEG, WebP, GIF and BMP are",
            param=param,
        ) from error
