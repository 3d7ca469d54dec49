"""Split GGUF files: any part opens all of them; parts that do not fit together are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from gguf_writer import write_gguf
from heddle.errors import ModelFileError, ModelSourceError
from heddle.extensions.reference.model import ReferenceModel
from heddle.weights.checkpoint import FilePlace
from heddle.weights.formats import name_of, open_checkpoint
from heddle.weights.inspect import describe
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

PARTS = 3


def part(folder: Path, number: int, count: int = PARTS) -> Path:
    return folder / f"tiny-{number:05}-of-{count:05}.gguf"


def write_parts(folder: Path, changes: dict[int, dict[str, object]] | None = None) -> Path:
    """Write the model in three parts, with changed metadata by number of the part from 1."""
    tensors = PLAIN.tensors()
    share = -(-len(tensors) // PARTS)
    for number in range(1, PARTS + 1):
        metadata: dict[str, object] = PLAIN.metadata() if number == 1 else {}
        metadata |= {"split.no": number - 1, "split.count": PARTS}
        metadata |= {"split.tensors.count": len(tensors)}
        metadata |= (changes or {}).get(number, {})
        kept = {key: value for key, value in metadata.items() if value is not None}
        write_gguf(part(folder, number), kept, tensors[share * (number - 1) : share * number])
    return folder


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_opens_the_whole_model(tmp_path: Path, number: int) -> None:
    whole = PLAIN.checkpoint(tmp_path)
    write_parts(tmp_path)
    with open_checkpoint(part(tmp_path, number)) as split:
        assert split.path == part(tmp_path, 1)
        assert list(split.stamps) == [part(tmp_path, each) for each in (1, 2, 3)]
        assert split.tensors.keys() == whole.tensors.keys()
        for name, tensor in split.tensors.items():
            np.testing.assert_array_equal(split.read(name), whole.read(name))
            assert isinstance(tensor.place, FilePlace)
        tokens = [1, 2, 3, 4]
        np.testing.assert_array_equal(
            ReferenceModel(split).logits(tokens), ReferenceModel(whole).logits(tokens)
        )


def test_parts_of_the_gguf_package_are_read(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=2)
    values = {f"t{i}": np.full((3, 32), i, np.float32) for i in range(5)}
    writer.add_name("theirs")
    for name, array in values.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(tmp_path / "theirs-00002-of-00003.gguf") as split:
        assert len(split.stamps) == 3
        for name, array in values.items():
            np.testing.assert_array_equal(split.read(name).view(np.float32), array.ravel())


def test_the_description_covers_all_parts(tmp_path: Path) -> None:
    found = describe(part(write_parts(tmp_path), 2))
    assert found.format == "GGUF 3, 3 parts"
    assert found.file_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert sum(group.count for group in found.tensors) == len(PLAIN.tensors())
    assert found.architecture == PLAIN.architecture


def test_the_name_of_a_split_model_has_no_number(tmp_path: Path) -> None:
    assert name_of(part(tmp_path, 2)) == "tiny"
    assert name_of(tmp_path / "tiny.q4_k-1-of-2.gguf") == "tiny.q4_k-1-of-2"


def test_a_change_of_any_part_is_noticed(tmp_path: Path) -> None:
    with open_checkpoint(part(write_parts(tmp_path), 1)) as split:
        with part(tmp_path, 3).open("ab") as file:
            file.write(b"more")
        with pytest.raises(ModelFileError, match=r"00003-of-00003.gguf changed while"):
            split.check_unchanged()


def test_missing_parts_are_named(tmp_path: Path) -> None:
    write_parts(tmp_path)
    part(tmp_path, 1).unlink()
    part(tmp_path, 3).unlink()
    with pytest.raises(ModelSourceError, match=r"lacks tiny-00001-of.*, tiny-00003-of"):
        open_checkpoint(part(tmp_path, 2))


@pytest.mark.parametrize(
    ("changes", "message", "field"),
    [
        ({2: {"split.no": 2}}, r"00002-of-00003.gguf: split.no is 2, not 1", "split.no"),
        ({2: {"split.no": None}}, r"00002-of-00003.gguf: split.no is None", "split.no"),
        ({3: {"split.count": 4}}, r"00003-of-00003.gguf: split.count is 4, not 3", "split.count"),
        ({1: {"split.count": 2}}, r"split.count is 2, but its name says 3", "split.count"),
        ({1: {"split.count": "3"}}, r"split.count is '3', but its name", "split.count"),
        (
            {3: {"split.tensors.count": 7}},
            r"00003-of-00003.gguf: split.tensors.count is 7, but the 3 parts have \d+",
            "split.tensors.count",
        ),
        (
            {2: {"general.name": "another"}},
            r"00002-of-00003.gguf: general.name is 'another', but tiny-00001.* has None",
            "general.name",
        ),
    ],
)
def test_parts_that_do_not_fit_are_named(
    tmp_path: Path, changes: dict[int, dict[str, object]], message: str, field: str
) -> None:
    write_parts(tmp_path, changes)
    with pytest.raises(ModelFileError, match=message) as caught:
        open_checkpoint(part(tmp_path, 1))
    assert caught.value.field == field


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    write_parts(tmp_path)
    tensors = PLAIN.tensors()
    split = {"split.no": 1, "split.count": PARTS, "split.tensors.count": len(tensors)}
    share = -(-len(tensors) // PARTS)
    stale = [*tensors[:1], *tensors[share + 1 : 2 * share]]
    write_gguf(part(tmp_path, 2), split, stale)
    with pytest.raises(ModelFileError, match=r"is in tiny-00001-of-00003.gguf too"):
        open_checkpoint(part(tmp_path, 3))


@pytest.mark.parametrize("name", ["renamed.gguf", "tiny-00004-of-00003.gguf"])
def test_a_part_whose_name_does_not_say_which_is_refused(tmp_path: Path, name: str) -> None:
    path = part(write_parts(tmp_path), 2).rename(tmp_path / name)
    with pytest.raises(ModelFileError, match=r"its name does not say which"):
        open_checkpoint(path)


def test_one_part_of_one_is_an_ordinary_file(tmp_path: Path) -> None:
    only = {"split.no": 0, "split.count": 1, "split.tensors.count": len(PLAIN.tensors())}
    path = write_gguf(part(tmp_path, 1, 1), PLAIN.metadata() | only, PLAIN.tensors())
    with open_checkpoint(path) as one:
        assert list(one.stamps) == [path]
