"""Opens all parts of a GGUF file that llama.cpp's `gguf-split` has split.

Part i of n is named `NAME-0000i-of-0000n.gguf`. Each part has `split.no` (its number, from 0),
`split.count` and `split.tensors.count` (the number of tensors in all parts). The other metadata is
in the first part. A tensor is in one part as a whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, ModelSourceError
from heddle.weights.gguf import names
from heddle.weights.gguf.file import GGUFFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>(?!0{5})\d{5})\.gguf", re.ASCII)


def model_name(file_name: str) -> str:
    """The name of a model by the name of its file, or of one of its parts."""
    part = _PART.fullmatch(file_name)
    return part["name"] if part else file_name.removesuffix(".gguf")


def part_names(file_name: str) -> tuple[str, ...]:
    """The names of all parts of the model of a file, by the name of any; its own if it is whole."""
    part = _PART.fullmatch(file_name)
    if part is None:
        return (file_name,)
    numbers = range(1, int(part["count"]) + 1)
    return tuple(f"{part['name']}-{number:05}-of-{part['count']}.gguf" for number in numbers)


def open_parts(path: Path) -> tuple[GGUFFile, ...]:
    """Open the file at `path`, and all other parts if it is one of several. The first comes first.

    Raises:
        ModelSourceError: a part is missing or cannot be read.
        ModelFileError: a part is damaged, or does not belong to the others.
        UnsupportedModelError: the version of the format is not supported.
    """
    given = GGUFFile.open(path)
    count = given.metadata.get(_COUNT, 1)
    if count in (0, 1):
        return (given,)
    files = [given]
    try:
        paths = _paths(given, count)
        files = [given if one == path else GGUFFile.open(one) for one in paths]
        for number, file in enumerate(files):
            _check_number(file, number, len(files))
        _check_tensors(files)
        _check_names(files)
    except BaseException:
        for file in files:
            file.close()
        raise
    return tuple(files)


def _fail(file: GGUFFile, field: str, problem: str) -> ModelFileError:
    return ModelFileError(
        f"{file.path}: {field} {problem}; fetch all parts of one model again", field=field
    )


def _paths(given: GGUFFile, count: object) -> list[Path]:
    """The paths of all parts, by the name of one."""
    part = _PART.fullmatch(given.path.name)
    if part is None or not 1 <= int(part["number"]) <= int(part["count"]):
        raise ModelFileError(
            f"{given.path} is a part of a split model ({_COUNT} is {count!r}), but its name does"
            " not say which; part 1 of 3 must have a name that ends with -00001-of-00003.gguf",
            field=_COUNT,
        )
    in_name = int(part["count"])
    if count != in_name:
        raise _fail(given, _COUNT, f"is {count!r}, but its name says {in_name} parts")
    all_names = part_names(given.path.name)
    missing = [name for name in all_names if not (given.path.parent / name).is_file()]
    if missing:
        raise ModelSourceError(
            f"{given.path} is one of {count} parts, and {given.path.parent} lacks"
            f" {', '.join(missing)}; put all parts into one folder",
            param="model",
        )
    return [given.path.with_name(name) for name in all_names]


def _check_number(file: GGUFFile, number: int, count: int) -> None:
    for field, expected in ((_NUMBER, number), (_COUNT, count)):
        found = file.metadata.get(field)
        if found != expected:
            raise _fail(file, field, f"is {found!r}, not {expected}, which its name says")


def _check_tensors(files: Sequence[GGUFFile]) -> None:
    """Check that the parts have as many tensors as each says, and no tensor twice."""
    total = sum(len(file.tensors) for file in files)
    for file in files:
        found = file.metadata.get(_TENSORS)
        if found != total:
            raise _fail(file, _TENSORS, f"is {found!r}, but the {len(files)} parts have {total}")
    place: dict[str, GGUFFile] = {}
    for file in files:
        for name in file.tensors:
            if name in place:
                raise _fail(file, name, f"is in {place[name].path.name} too")
            place[name] = file


def _check_names(files: Sequence[GGUFFile]) -> None:
    """Check that no part names another model than the first. Most parts name none."""
    first, *others = files
    for file in others:
        for field in (names.ARCHITECTURE, names.NAME):
            if field in file.metadata and file.metadata[field] != first.metadata.get(field):
                found, expected = file.metadata[field], first.metadata.get(field)
                here = f"is {found!r}, but {first.path.name} has {expected!r}"
                raise _fail(file, field, f"{here}: it is a part of another model")
