"""The safetensors reader: valid files, and a typed error for every broken file."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from folder_writer import write_raw_safetensors
from heddle.errors import HeddleError, ModelFileError, ModelSourceError
from heddle.weights.huggingface.safetensors import SafetensorsFile

if TYPE_CHECKING:
    from pathlib import Path


def entry(dtype: str, shape: list[int], first: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


SOUND = {
    "__metadata__": {"format": "pt"},
    "b": entry("F32", [2, 3], 4, 28),
    "a": entry("BF16", [2], 0, 4),
    "empty": entry("F16", [0, 5], 28, 28),
}


def test_a_file_from_the_safetensors_package_is_read(tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray] = {
        "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
        "half": np.arange(5, dtype=np.float16),
        "scalar": np.array(2.5, np.float32),
        "integers": np.array([[1, 2]], np.int64),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "np"})
    with SafetensorsFile.open(tmp_path / "x.safetensors") as file:
        assert file.tensors.keys() == tensors.keys()
        for name, values in tensors.items():
            stored = file.tensors[name]
            assert stored.shape == values.shape
            assert bytes(file.read(stored.offset, stored.nbytes, name)) == values.tobytes()


def test_tensors_can_be_in_any_order(tmp_path: Path) -> None:
    path = write_raw_safetensors(tmp_path / "x", SOUND, bytes(range(28)))
    with SafetensorsFile.open(path) as file:
        start = file.tensors["a"].offset
        assert [file.tensors[name].offset - start for name in "ab"] == [0, 4]
        assert file.tensors["empty"].nbytes == 0


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ([], "header must be a JSON object"),
        ({"a": 1}, "a must have dtype, shape and data_offsets"),
        ({"a": entry("F32", [7], 0, 28) | {"more": 1}}, "and nothing else"),
        ({"a": entry("F33", [7], 0, 28)}, "a has the unknown dtype 'F33'"),
        ({"a": entry("F32", [-7], 0, 28)}, "a has the shape"),
        ({"a": entry("F32", [True], 0, 28)}, "a has the shape"),
        ({"a": entry("F32", [7.0], 0, 28)}, "a has the shape"),  # type: ignore[list-item]
        ({"a": entry("F32", [7], 0, 24)}, "a has 24 bytes, and F32 of shape .7. takes 28"),
        ({"a": entry("F32", [2**62, 2**62], 0, 28)}, "a has 28 bytes"),
        ({"a": entry("F32", [2**62] * 8, 0, 28)}, "a has 28 bytes"),
        ({"a": entry("F32", [1] * 9, 0, 28)}, "a has 9 dimensions; at most 8"),
        ({"a": entry("F32", [10**19], 0, 28)}, "a whole number has 20 digits"),
        ({"a": entry("F32", [0], 0, -(10**400))}, "a whole number has 402 digits"),
        ({"a": entry("F4", [57], 0, 28)}, "a has 28 bytes, and F4 of shape .57. takes 28.5"),
        ({"a": entry("F32", [8], 0, 32)}, "a ends at byte"),
        ({"a": entry("F32", [6], 4, 28)}, "a begins at byte"),
        ({"a": entry("F32", [7], 28, 0)}, "a has -28 bytes"),
        ({"a": entry("F32", [4], 0, 16), "b": entry("F32", [4], 12, 28)}, "b begins at byte"),
        ({"a": entry("F32", [6], 0, 24)}, "tensors end at byte"),
    ],
)
def test_a_wrong_header_is_refused_by_name(header: object, problem: str, tmp_path: Path) -> None:
    path = write_raw_safetensors(tmp_path / "x", header, bytes(28))
    with pytest.raises(ModelFileError, match=problem):
        SafetensorsFile.open(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "header does not fit in a file of 0 bytes"),
        (b"1234567", "header does not fit"),
        (struct.pack("<Q", 1 << 40), "header claims 1099511627776 bytes"),
        (struct.pack("<Q", 100) + b"{}", "header claims 100 bytes"),
        (struct.pack("<Q", 33 << 20) + bytes(33 << 20), "header claims 34603008 bytes"),
        (struct.pack("<Q", 1) + b"{", "header is not JSON"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "header is not JSON"),
        (struct.pack("<Q", 40_000) + b"[" * 40_000, "header is not JSON"),
        (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "a name occurs twice"),
    ],
)
def test_a_file_that_is_not_safetensors_is_refused(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ModelFileError, match=problem):
        SafetensorsFile.open(tmp_path / "x")
    with pytest.raises(ModelSourceError):
        SafetensorsFile.open(tmp_path / "no such file")


def test_an_error_shows_the_ends_of_a_long_value(tmp_path: Path) -> None:
    name = "n" * 10_000
    path = write_raw_safetensors(tmp_path / "x", {name: entry("F33", [7], 0, 28)}, bytes(28))
    with pytest.raises(ModelFileError, match=r"nnn \.\.\. nnn.*fetch it again") as error:
        SafetensorsFile.open(path)
    assert len(error.value.message) < 5000
    assert len(error.value.field) < 300


def test_an_error_is_well_formed(tmp_path: Path) -> None:
    path = write_raw_safetensors(tmp_path / "x", {"\ud800": entry("F33", [7], 0, 28)}, bytes(28))
    with pytest.raises(ModelFileError, match=r": \? has the unknown dtype") as error:
        SafetensorsFile.open(path)
    assert error.value.field == "?"


@given(st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_gives_a_typed_error_or_readable_tensors(
    tmp_path: Path, data: st.DataObject
) -> None:
    text = json.dumps(SOUND).encode()
    content = bytearray(struct.pack("<Q", len(text)) + text + bytes(range(28)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    (tmp_path / "x").write_bytes(content)
    try:
        with SafetensorsFile.open(tmp_path / "x") as file:
            for name, stored in file.tensors.items():
                assert len(file.read(stored.offset, stored.nbytes, name)) == stored.nbytes
    except HeddleError:
        pass
