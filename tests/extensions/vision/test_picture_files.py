"""Files become the pixels that `transformers` would see, within bounds."""

from __future__ import annotations

import random
import struct
import tracemalloc
import warnings
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from image_files import file_of, gradient
from PIL import Image, ImageOps

from heddle.errors import HeddleError, InvalidRequestError, OutOfMemoryError
from heddle.extensions.vision import reading
from heddle.extensions.vision.reading import MOST_PIXELS, OpenedPicture
from heddle.pictures import Picture

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def read(data: bytes) -> Picture:
    return OpenedPicture(data, "image").read()


def refusal(data: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as error:
        read(data)
    assert error.value.param == "image"
    return error.value


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_of_each_format(kind: str) -> None:
    data = file_of(gradient(), kind)
    picture = read(data)
    expected = np.asarray(Image.open(reading.BytesIO(data)).convert("RGB"))
    assert picture.pixels.shape == (8, 12, 3)
    assert np.array_equal(picture.pixels, expected)
    assert picture.pixels.flags.c_contiguous
    assert not picture.pixels.flags.writeable
    assert picture.digest == Picture.of(expected.copy()).digest


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file_of(gradient(), exif=exif)
    expected = ImageOps.exif_transpose(Image.open(reading.BytesIO(data))).convert("RGB")
    assert np.array_equal(read(data).pixels, np.asarray(expected))


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Beginnings of the only warnings of Pillow that may be; they are on stderr of a server."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        left: list[str] = []
        yield left
    assert not [one for one in found if not str(one.message).startswith(tuple(left))]


DIRECTORY = b"II*\0\x08\0\0\0"


@pytest.mark.parametrize(
    "exif",
    [
        b"II*\0\xff\xff\xff\xff",
        DIRECTORY + struct.pack("<HHHII", 2, 0x0112, 3, 1, 6),  # of two entries one
        DIRECTORY + struct.pack("<HHHIII", 1, 0x0112, 3, 500, 8, 0),
        DIRECTORY + struct.pack("<HHHIII", 1, 0x0112, 3, 2, 6 << 16 | 6, 0),
        DIRECTORY + struct.pack("<HHHIIHHIII", 2, 1, 7, 30, 8, 0x0112, 7, 30, 8, 0),
    ],
)
@pytest.mark.usefixtures("said")
def test_damaged_exif_is_no_damage(exif: bytes) -> None:
    data = file_of(gradient(), exif=b"Exif\0\0" + exif)
    assert np.array_equal(read(data).pixels, np.asarray(gradient()))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_modes_become_rgb_as_pillow_converts(mode: str) -> None:
    image = gradient().convert(mode)
    assert np.array_equal(read(file_of(image)).pixels, np.asarray(image.convert("RGB")))


def test_transparency_shows_white() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (255, 0, 0, 255))
    assert read(file_of(image)).pixels.tolist() == [[[255, 255, 255], [255, 0, 0]]]
    palette = Image.new("P", (1, 1))
    palette.putpalette([1, 2, 3])
    assert read(file_of(palette, transparency=0)).pixels.tolist() == [[[255, 255, 255]]]


def test_cmyk() -> None:
    data = file_of(gradient().convert("CMYK"), "JPEG")
    expected = Image.open(reading.BytesIO(data)).convert("RGB")
    assert np.array_equal(read(data).pixels, np.asarray(expected))


def test_grey_of_16_bits_keeps_its_upper_bits() -> None:
    image = Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16))
    assert read(file_of(image)).pixels[0, :, 0].tolist() == [0, 0, 1, 255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_counts(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    data = file_of(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    assert read(data).pixels[0, 0].tolist() == [255, 0, 0] or kind == "GIF"
    assert read(data).pixels[0, 0, 2] < 10


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_file_is_refused(kind: str) -> None:
    data = file_of(gradient(64, 64), kind)
    assert "is damaged" in refusal(data[: len(data) // 2]).message


@pytest.mark.parametrize("data", [b"", b"hello", b"%PDF-1.7", b"II*\0" + bytes(64)])
def test_no_picture(data: bytes) -> None:
    error = refusal(data)
    assert error.message.startswith("image is no picture")
    assert "PNG, JPEG, WebP, GIF and BMP" in error.message


@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf", b'<?xml version="1.0"?>\n', b"<!-- x -->"])
def test_an_svg_has_to_be_rendered_first(head: bytes) -> None:
    assert "render it to PNG first" in refusal(head + b"<svg width='9'></svg>").message


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and has no pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize(
    "size", [(8001, 8000), (12_000, 9_000), (1 << 20, 1 << 20), (2**31 - 1, 1)]
)
def test_a_size_is_checked_before_memory_is_taken(size: tuple[int, int]) -> None:
    data = png_of_size(*size)
    tracemalloc.start()
    message = refusal(data).message
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert "is a picture of" in message


def test_a_bound_that_just_holds() -> None:
    assert OpenedPicture(png_of_size(8000, 8000), "image").pixels == MOST_PIXELS


@pytest.mark.parametrize("lossless", [True, False])
def test_the_size_of_a_webp_is_checked_before_its_decoder_is_made(
    lossless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = file_of(gradient(), "WEBP", lossless=lossless)
    assert reading._webp_size(data) == (12, 8)
    animated = file_of(gradient(), "WEBP", save_all=True, append_images=[gradient().rotate(180)])
    assert reading._webp_size(animated) == (12, 8)
    monkeypatch.setattr(reading, "MOST_PIXELS", 95)
    monkeypatch.setattr(reading.Image, "open", lambda *_, **__: pytest.fail("opened"))
    assert "12 x 8" in refusal(data).message


def test_a_jpeg_of_many_scans_is_refused() -> None:
    data = file_of(gradient(64, 64), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    read(data[:-2] + last * 20 + data[-2:])
    assert "scans" in refusal(data[:-2] + last * 80 + data[-2:]).message


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "available_bytes", lambda: 1000)
    with pytest.raises(OutOfMemoryError, match="image may need 0 MB"):
        read(file_of(gradient()))


def test_a_text_that_unpacks_to_much_is_refused() -> None:
    data = bytearray(file_of(gradient()))
    body = b"key\0\0" + zlib.compress(bytes(1 << 24), 9)
    check = struct.pack(">I", zlib.crc32(b"zTXt" + body))
    data[33:33] = struct.pack(">I", len(body)) + b"zTXt" + body + check
    tracemalloc.start()
    refusal(bytes(data))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A file with some bytes changed, cut off, repeated or left out."""
    file = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        place, kind = rng.randrange(len(file)), rng.randrange(5)
        if kind == 0:
            file[place] = rng.randrange(256)
        elif kind == 1:
            file[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            file[place : place + 4] = rng.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
        elif kind == 3:
            del file[place : place + rng.randrange(1, 16)]
        else:
            file[place:place] = file[place : place + rng.randrange(1, 64)]
        if not file:
            break
    return bytes(file[: rng.randrange(len(file))] if file and rng.random() < 0.1 else file)


def originals() -> list[bytes]:
    image = gradient(40, 30)
    exif = Image.Exif()
    exif[0x0112] = 6
    files = [file_of(image, kind) for kind in KINDS]
    files += [
        file_of(image, "JPEG", progressive=True, exif=exif),
        file_of(image.convert("CMYK"), "JPEG"),
        file_of(image.convert("P"), "PNG", transparency=0, exif=exif),
        file_of(image.convert("RGBA"), "WEBP", lossless=True),
        *(file_of(image, kind, save_all=True, append_images=[image]) for kind in ("GIF", "WEBP")),
        file_of(image.convert("1"), "BMP"),
    ]
    return files


def test_damaged_files_are_pictures_or_refused(said: list[str]) -> None:
    said.append("Image size")  # of a GIF whose first frame is larger than the picture
    rng, files, seen = random.Random(7), originals(), set()
    for count in range(2000):
        data = damaged(files[count % len(files)], rng)
        try:
            picture = read(data)
        except HeddleError as error:
            seen.add(type(error))
            continue
        height, width, _ = picture.pixels.shape
        assert height * width <= MOST_PIXELS
        seen.add(Picture)
    assert {Picture, InvalidRequestError} <= seen
