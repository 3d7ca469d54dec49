"""Builds small wheels for tests of model sources."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def wheel_bytes(
    package: str, version: str, members: Mapping[str, bytes], needs: str | None = None
) -> bytes:
    """A wheel that pip accepts, with `members` in it, depending on package `needs`."""
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    if needs is not None:
        metadata += f"Requires-Dist: {needs}\n"
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return output.getvalue()
