"""The GGUF reader: the content of valid files, and a typed error for every broken file."""

from __future__ import annotations

import os
import struct
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_writer import ARRAY, BOOL, STRING, Raw, Tensor, gguf_bytes, write_gguf
from heddle.errors import ModelFileError, ModelSourceError, UnsupportedModelError
from heddle.weights import files
from heddle.weights.gguf.file import GGUFFile, StringArray
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from pathlib import Path

METADATA = {
    "general.architecture": "llama",
    "general.name": "Größe 字",
    "llama.block_count": 2,
    "a.negative": -5,
    "a.large": 2**40,
    "a.float": 0.5,
    "a.true": True,
    "a.bytes": np.array([1, 2, 255], np.uint8),
    "a.integers": np.array([-1, 7], np.int64),
    "a.doubles": np.array([0.1], np.float64),
    "a.flags": np.array([True, False]),
    "a.none": np.array([], np.float32),
    "tokenizer.ggml.tokens": ["<s>", "", "Ġhé", "字"],
    "tokenizer.ggml.none": [],
}
TENSORS = [
    Tensor.of("norm", np.arange(5, dtype=np.float32)),
    Tensor.random("matrix", TensorType.Q4_1, (3, 64), seed=1),
    Tensor.random("experts", TensorType.Q6_K, (2, 3, 256), seed=2),
    Tensor.of("scalar", np.array(2.5, np.float32)),
]


def opened(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return GGUFFile.open(path)


def everything(file: GGUFFile) -> int:
    """Read the whole file; return a number that depends on all of it."""
    total = sum(int(file.data(name).sum()) for name in file.tensors)
    for value in file.metadata.values():
        total += len(list(value)) if isinstance(value, StringArray) else len(repr(value))
    return total


# --- sound files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_is_returned_as_python_values(tmp_path: Path, version: int) -> None:
    with opened(tmp_path, gguf_bytes(METADATA, TENSORS, version=version)) as file:
        assert file.version == version
        assert list(file.metadata) == list(METADATA)
        for key, expected in METADATA.items():
            value = file.metadata[key]
            if isinstance(expected, np.ndarray):
                assert isinstance(value, np.ndarray)
                assert value.dtype == expected.dtype
                assert value.tolist() == expected.tolist()
            elif isinstance(expected, list):
                assert list(value) == expected
            else:
                assert type(value) is type(expected)
                assert value == expected


def test_tensors_have_row_major_shapes_and_their_bytes(tmp_path: Path) -> None:
    with opened(tmp_path, gguf_bytes(METADATA, TENSORS)) as file:
        assert list(file.tensors) == [tensor.name for tensor in TENSORS]
        for tensor in TENSORS:
            info, data = file.tensors[tensor.name], file.data(tensor.name)
            assert (info.shape, info.type) == (tensor.shape, tensor.type)
            assert info.nbytes == len(tensor.data)
            assert info.offset % 32 == 0
            assert data.dtype == np.uint8
            assert data.tobytes() == tensor.data
            assert not data.flags.writeable


def test_the_alignment_of_the_file_is_used(tmp_path: Path) -> None:
    content = gguf_bytes({"general.alignment": 1024}, TENSORS)
    with opened(tmp_path, content) as file:
        assert all(info.offset % 1024 == 0 for info in file.tensors.values())
        assert file.data("matrix").tobytes() == TENSORS[1].data


def test_the_reader_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", METADATA, TENSORS[:-1])
    theirs = GGUFReader(path)
    with GGUFFile.open(path) as ours:
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert list(info.shape) == tensor.shape.tolist()[::-1]
            assert (info.type, info.offset) == (tensor.tensor_type, tensor.data_offset)
            assert np.array_equal(ours.data(tensor.name), tensor.data.view(np.uint8).reshape(-1))
        for key in METADATA.keys() - {"a.none", "tokenizer.ggml.none"}:
            value = ours.metadata[key]
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            expected = theirs.get_field(key).contents()
            assert (list(plain) if isinstance(plain, StringArray) else plain) == expected


def test_block_sizes_are_those_of_ggml() -> None:
    # The gguf package counts Q8_1, which no file holds, with float32 scales; ggml has float16.
    for kind in set(TensorType) - {TensorType.Q8_1}:
        expected = next((size for known, size in GGML_QUANT_SIZES.items() if known == kind), None)
        assert expected in (None, (kind.block_elements, kind.block_bytes)), kind.name


def test_string_arrays_are_sequences(tmp_path: Path) -> None:
    with opened(tmp_path, gguf_bytes(METADATA)) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, StringArray)
    assert len(tokens) == 4
    assert (tokens[0], tokens[-1], tokens[np.int64(2)]) == ("<s>", "字", "Ġhé")
    assert tokens[1:3] == ["", "Ġhé"]
    assert "Ġhé" in tokens
    with pytest.raises(IndexError):
        tokens[4]


def test_a_closed_file_keeps_old_views_and_gives_no_new_ones(tmp_path: Path) -> None:
    file = opened(tmp_path, gguf_bytes(METADATA, TENSORS))
    view = file.data("matrix")
    file.close()
    file.close()
    assert view.tobytes() == TENSORS[1].data
    assert file.tensors["matrix"].shape == (3, 64)
    with pytest.raises(ValueError, match="is closed"):
        file.data("matrix")


def test_other_bytes_of_the_same_size_are_a_change(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", METADATA, TENSORS)
    with GGUFFile.open(path) as file:
        file.check_unchanged()
        os.utime(path, ns=(0, file.stamp.mtime_ns + 1))
        with pytest.raises(ModelFileError, match=r"x\.gguf changed while it was read"):
            file.check_unchanged()


def test_a_tensor_larger_than_one_read_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path, gguf_bytes(METADATA, TENSORS))
    monkeypatch.setattr(files, "_PIECE", 7)
    for tensor in TENSORS:
        assert file.data(tensor.name).tobytes() == tensor.data


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    file = opened(tmp_path, gguf_bytes(METADATA, TENSORS))
    with pytest.raises(ModelFileError, match=r"'output\.weight' is missing") as caught:
        file.data("output.weight")
    assert caught.value.field == "output.weight"


# --- broken files --------------------------------------------------------------------------------

HUGE = 2**63
HEADER = struct.Struct("<4sIQQ")


def one(**fields: object) -> bytes:
    """A file with one tensor `w`, of 64 float32 unless `fields` change it."""
    given = {"data": bytes(256), "shape": (64,), **fields}
    return gguf_bytes({}, [Tensor("w", **given)])  # type: ignore[arg-type]


def pair(raw: bytes) -> bytes:
    """A file whose one metadata pair is `raw`, the last thing in it."""
    return HEADER.pack(b"GGUF", 3, 0, 1) + raw


def strings(count: int, payload: bytes) -> Raw:
    return Raw(ARRAY, struct.pack("<IQ", STRING, count) + payload)


def nested(depth: int) -> Raw:
    return Raw(ARRAY, struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQB", 0, 1, 5))


A_KEY = struct.pack("<QcI", 1, b"a", ARRAY)
BAD_NAME = Tensor("\udcff", bytes(4), (1,))
FIRST, SECOND = (Tensor(name, bytes(256), (64,)) for name in "vw")
MANY_DIMENSIONS = gguf_bytes({}, [FIRST]).replace(b"v\1\0\0\0", b"v\xff\xff\xff\xff")

BROKEN = {
    "empty": (b"", "magic"),
    "three bytes": (b"GGU", "magic"),
    "bad magic": (gguf_bytes({}, magic=b"GGML"), "magic"),
    "no version": (b"GGUF", "version"),
    "no counts": (gguf_bytes({})[:10], "tensor_count"),
    "tensor count": (gguf_bytes({}, tensor_count=HUGE), "tensor_count"),
    "metadata count": (gguf_bytes({}, metadata_count=HUGE), "metadata_count"),
    "one tensor too many": (gguf_bytes({}, TENSORS, tensor_count=5), "tensors[4].name"),
    "key length": (pair(struct.pack("<QIB", HUGE, 0, 0)), "metadata[0].key"),
    "no key": (gguf_bytes({"": 1}), "metadata[0].key"),
    "key not UTF-8": (gguf_bytes({"\udcff": 1}), "metadata[0].key"),
    "key twice": (gguf_bytes([("a.b", 1), ("a.b", 2)]), "a.b"),
    "value type": (gguf_bytes({"a": Raw(13, bytes(8))}), "a"),
    "bool of 2": (gguf_bytes({"a": Raw(BOOL, b"\2")}), "a"),
    "string past the end": (gguf_bytes({"a": Raw(STRING, struct.pack("<Q", 99))}), "a"),
    "string of 2**63": (gguf_bytes({"a": Raw(STRING, struct.pack("<Q", HUGE))}), "a"),
    "string not UTF-8": (gguf_bytes({"a": "\udc80"}), "a"),
    "array type": (gguf_bytes({"a": Raw(ARRAY, struct.pack("<IQ", 77, 0))}), "a"),
    "array past the end": (gguf_bytes({"a": Raw(ARRAY, struct.pack("<IQ", 10, 9))}), "a"),
    "array of 2**64 - 1": (gguf_bytes({"a": Raw(ARRAY, struct.pack("<IQ", 10, 2**64 - 1))}), "a"),
    "array of bools of 3": (gguf_bytes({"a": Raw(ARRAY, struct.pack("<IQB", BOOL, 1, 3))}), "a"),
    "strings of 2**63": (gguf_bytes({"a": strings(HUGE, b"")}), "a"),
    "string in array past the end": (gguf_bytes({"a": strings(1, struct.pack("<Q", 99))}), "a[0]"),
    "second string of 2**64 - 1": (gguf_bytes({"a": strings(2, bytes(8) + b"\xff" * 8)}), "a[1]"),
    "strings cut short": (pair(A_KEY + strings(2, b"\x10" + bytes(23)).payload), "a[1]"),
    "nested array": (gguf_bytes({"a": nested(1)}), "a"),
    "very nested array": (gguf_bytes({"a": nested(100_000)}), "a"),
    "alignment 0": (gguf_bytes({"general.alignment": Raw(4, bytes(4))}), "general.alignment"),
    "alignment 48": (gguf_bytes({"general.alignment": 48}), "general.alignment"),
    "alignment text": (gguf_bytes({"general.alignment": "32"}), "general.alignment"),
    "alignment past the end": (gguf_bytes({"general.alignment": 64}, TENSORS[:1])[:-32], "norm"),
    "tensor name not UTF-8": (gguf_bytes({}, [BAD_NAME]), "tensors[0].name"),
    "no tensor name": (gguf_bytes({}, [replace(FIRST, name="")]), "tensors[0].name"),
    "tensor twice": (gguf_bytes({}, [TENSORS[0], TENSORS[0]]), "norm"),
    "five dimensions": (one(shape=(1, 1, 1, 1, 64)), "w"),
    "2**32 - 1 dimensions": (MANY_DIMENSIONS, "v"),
    "no elements": (one(shape=(4, 0)), "w"),
    "product of shape": (one(shape=(2**62, 2**62, 2**62, 2**62)), "w"),
    "product that wraps to 0": (one(shape=(2**32, 2**32)), "w"),
    "larger than the data": (one(shape=(65,)), "w"),
    "row of part of a block": (one(shape=(2, 16), type=TensorType.Q8_0), "w"),
    "tensor type": (one(type=99), "w"),
    "retired tensor type": (one(type=4), "w"),
    "offset off the alignment": (one(offset=4, data=bytes(512)), "w"),
    "offset past the end": (one(offset=320), "w"),
    "offset of 2**63": (one(offset=HUGE), "w"),
    "overlap": (gguf_bytes({}, [FIRST, replace(SECOND, offset=32)]), "w"),
    "same place": (gguf_bytes({}, [FIRST, replace(SECOND, offset=0)]), "w"),
    "no data": (one()[:-256], "w"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_with_the_field_at_fault(tmp_path: Path, case: str) -> None:
    content, field = BROKEN[case]
    with pytest.raises(ModelFileError) as caught:
        opened(tmp_path, content)
    assert caught.value.field == field
    assert "model.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "message"),
    [(1, "is GGUF 1;"), (4, "is GGUF 4;"), (3 << 24, "is big-endian GGUF 3;")],
)
def test_other_versions_are_unsupported(tmp_path: Path, version: int, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        opened(tmp_path, gguf_bytes({}, version=version))


def test_nested_arrays_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="a is an array of arrays, which is not supported"):
        opened(tmp_path, gguf_bytes({"a": nested(1)}))


def test_a_token_that_is_not_utf8_fails_when_it_is_read(tmp_path: Path) -> None:
    file = opened(tmp_path, gguf_bytes({"tokens": ["good", "\udcff"]}))
    tokens = file.metadata["tokens"]
    assert isinstance(tokens, StringArray)
    assert tokens[0] == "good"
    for read in (lambda: tokens[1], lambda: list(tokens)):
        with pytest.raises(ModelFileError) as caught:
            read()
        assert caught.value.field == "tokens[1]"


def test_claimed_sizes_are_not_allocated(tmp_path: Path) -> None:
    claims = (10, 2**32), (STRING, 2**32)
    for kind, count in claims:
        content = gguf_bytes({"a": Raw(ARRAY, struct.pack("<IQ", kind, count))})
        tracemalloc.start()
        with pytest.raises(ModelFileError):
            opened(tmp_path, content)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


def test_a_path_that_is_not_a_file_is_a_source_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.gguf"):
        with pytest.raises(ModelSourceError, match="is not a file"):
            GGUFFile.open(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = gguf_bytes({"a.b": 1, "a.c": "text", "a.d": ["x", "y"]}, TENSORS[:1])
    everything(opened(tmp_path, content))
    for size in range(len(content)):
        with pytest.raises(ModelFileError):
            opened(tmp_path, content[:size])


SOUND = gguf_bytes(METADATA, TENSORS)
HEADER_SIZE = 1100


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, HEADER_SIZE),
            st.sampled_from([0, 1, 4, 8]),
            st.one_of(
                st.binary(max_size=9),
                st.integers(0, 2**64 - 1).map(lambda n: struct.pack("<Q", n)),
                st.sampled_from([0, 2**31, 2**63 - 1, 2**63]).map(lambda n: struct.pack("<Q", n)),
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    cut=st.integers(0, len(SOUND)),
)
def test_a_mutated_file_gives_a_typed_error_or_is_readable(
    tmp_path: Path, edits: list[tuple[int, int, bytes]], cut: int
) -> None:
    content = SOUND
    for start, removed, inserted in edits:
        content = content[:start] + inserted + content[start + removed :]
    for candidate in (content, content[:cut]):
        try:
            everything(opened(tmp_path, candidate))
        except (ModelFileError, UnsupportedModelError) as error:
            assert error.param
