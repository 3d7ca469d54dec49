"""Files of pictures for tests."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

from PIL import Image


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The file that Pillow writes."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def gradient(width: int = 12, height: int = 8) -> Image.Image:
    """A picture without two equal corners."""
    image = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            image.putpixel((x, y), (x * 20 % 256, y * 30 % 256, (x * y) % 256))
    return image


def text_of(data: bytes) -> str:
    """A file in base64."""
    return base64.b64encode(data).decode()


def url_of(data: bytes) -> str:
    """A file as a data URL."""
    return "data:image/png;base64," + text_of(data)


CAT = file_of(gradient())
"""A picture of 12 x 8 pixels, 4 tokens for fake eyes."""
