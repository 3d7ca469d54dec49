"""Which file has the eyes of a GGUF model: beside it, named, or fetched with it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tiny_eyes import IDEFICS3, QWEN2_VL
from tiny_mmproj import write_mmproj

from fake_hub import Repository, fake_hub
from gguf_writer import gguf_bytes
from heddle.config import EngineConfig
from heddle.errors import ConfigError, ModelFileError, ModelSourceError, UnsupportedModelError
from heddle.extensions.vision.files import eyes_of
from heddle.extensions.vision.mmproj import mmproj_among
from heddle.extensions.vision.settings import EyesSettings
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.llama import PLAIN
from models.tiny.qwen3 import MODELS as QWEN3
from weights.hub_rig import COMPLETE, WHOLE, found

if TYPE_CHECKING:
    from pathlib import Path

    from fake_hub import FakeHub


# --- beside the model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (("model-Q4_0.gguf", "mmproj-model-f16.gguf"), "mmproj-model-f16.gguf"),
        (("mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-Q8_0.gguf"), "mmproj-BF16.gguf"),
        (("mmproj-BF16.gguf", "mmproj-F16.gguf"), "mmproj-F16.gguf"),
        (("mmproj-Q4_K_M.gguf", "mmproj-F32.gguf"), "mmproj-F32.gguf"),
        (("Tiny-mmproj.gguf", "README.md"), "Tiny-mmproj.gguf"),
        (("mmproj-one-F16.gguf", "mmproj-other-F16.gguf"), None),
        (("model.gguf", "mmproj.txt"), None),
    ],
)
def test_the_best_of_equal_files_is_chosen(names: tuple[str, ...], first: str | None) -> None:
    assert next(iter(mmproj_among(names)), None) == first


def test_the_file_beside_the_model_is_taken(tmp_path: Path) -> None:
    write_mmproj(tmp_path / "mmproj-F16.gguf", IDEFICS3)
    with GGUFCheckpoint.open(PLAIN.write(tmp_path / "tiny.gguf")) as text:
        eyes = eyes_of(text)
        assert eyes is not None
        with eyes:
            assert eyes.path == tmp_path / "mmproj-F16.gguf"
        assert eyes_of(text, "none") is None


def test_eyes_of_several_models_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("mmproj-one.gguf", "mmproj-two.gguf"):
        write_mmproj(tmp_path / name, IDEFICS3)
    with (
        caplog.at_level(logging.WARNING),
        GGUFCheckpoint.open(PLAIN.write(tmp_path / "tiny.gguf")) as text,
    ):
        assert eyes_of(text) is None
        assert "several files beside it have eyes: mmproj-one.gguf, mmproj-two.gguf" in caplog.text
        with eyes_of(text, str(tmp_path / "mmproj-two.gguf")) as eyes:
            assert eyes.path.name == "mmproj-two.gguf"


def test_a_model_without_such_eyes_does_not_look_for_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_mmproj(tmp_path / "mmproj-F16.gguf", IDEFICS3, general__alignment=7)
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"no GGUF file")
    with GGUFCheckpoint.open(QWEN3[0].write(tmp_path / "tiny.gguf")) as text:
        text.architecture = "starcoder2"
        assert eyes_of(text) is None
    assert not caplog.text


def test_eyes_that_do_not_fit_are_left_alone_unless_somebody_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj-F16.gguf", QWEN2_VL)
    with GGUFCheckpoint.open(PLAIN.write(tmp_path / "tiny.gguf")) as text:
        assert eyes_of(text) is None
        assert "it sees no pictures" in caplog.text
        with pytest.raises(ModelFileError, match=r"kind qwen2_vl, but .*tiny.gguf.* llama; these"):
            eyes_of(text, str(mmproj))
        with pytest.raises(ModelSourceError, match=r"absent.gguf is not a file"):
            eyes_of(text, str(tmp_path / "absent.gguf"))
        with pytest.raises(ModelFileError, match=r"general.architecture is 'llama', not 'clip'"):
            eyes_of(text, str(tmp_path / "tiny.gguf"))


def test_a_wider_model_is_named_beside_the_eyes(tmp_path: Path) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj-F16.gguf", QWEN2_VL)
    text = QWEN2_VL.text.write(tmp_path / "tiny.gguf")
    with GGUFCheckpoint.open(text) as checkpoint:
        checkpoint.hyperparameters._values["width"] = 32
        with pytest.raises(
            ModelFileError, match=r"mmproj-F16.*rows of 64 elements.*tiny.gguf has a width of 32"
        ):
            eyes_of(checkpoint, str(mmproj))


def test_a_kind_that_is_not_supported_is_named(tmp_path: Path) -> None:
    mmproj = write_mmproj(
        tmp_path / "mmproj.gguf", IDEFICS3, **{"clip.projector_type": "resampler"}
    )
    with (
        GGUFCheckpoint.open(PLAIN.write(tmp_path / "tiny.gguf")) as text,
        pytest.raises(UnsupportedModelError, match=r"clip.projector_type 'resampler' is not supp"),
    ):
        eyes_of(text, str(mmproj))


# --- the setting ---------------------------------------------------------------------------------


def test_a_folder_has_its_eyes_itself(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(IDEFICS3.write_folder(tmp_path)) as folder:
        assert eyes_of(folder, "none") is None
        with pytest.raises(ConfigError, match=r"is a folder, which has its eyes itself"):
            eyes_of(folder, "eyes.gguf")


def test_a_file_for_the_default_model_is_not_for_others() -> None:
    default = EngineConfig(extensions=(EyesSettings(mmproj="eyes.gguf"),))
    assert default.beside_default(default).of(EyesSettings).mmproj == "auto"
    own = EngineConfig(extensions=(EyesSettings(mmproj="none"),))
    assert own.beside_default(default).of(EyesSettings).mmproj == "none"
    assert default.for_draft_model().of(EyesSettings).mmproj == "none"


# --- the hub -------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with fake_hub() as one:
        yield one


def test_eyes_are_fetched_with_the_model(hub: FakeHub, tmp_path: Path) -> None:
    eyes = write_mmproj(tmp_path / "eyes.gguf", IDEFICS3).read_bytes()
    files = {"tiny-F32.gguf": WHOLE, "mmproj-tiny-F32.gguf": eyes, "mmproj-tiny-F16.gguf": eyes}
    hub.repositories["org/tiny"] = Repository.of(files)
    model = found(hub, tmp_path, "org/tiny")
    assert sorted(hub.fetched()) == ["mmproj-tiny-F16.gguf", "tiny-F32.gguf"]
    with GGUFCheckpoint.open(model.path) as text, eyes_of(text) as one:
        assert one.architecture == "idefics3"


def test_eyes_are_not_fetched_for_a_model_that_does_not_see(hub: FakeHub, tmp_path: Path) -> None:
    text = gguf_bytes(QWEN3[0].metadata() | COMPLETE | {"general.architecture": "gpt2"})
    hub.repositories["org/tiny"] = Repository.of({"a-F32.gguf": text, "mmproj-F16.gguf": b"GGUF"})
    found(hub, tmp_path, "org/tiny")
    assert hub.fetched() == ["a-F32.gguf"]


def test_a_folder_is_fetched_with_what_prepares_its_pictures(hub: FakeHub, tmp_path: Path) -> None:
    folder = IDEFICS3.write_folder(tmp_path / "folder")
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "video_preprocessor_config.json").write_text("{}")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.repositories["org/tiny"] = Repository.of(files)
    found(hub, tmp_path, "org/tiny")
    assert set(hub.fetched()) == set(files) - {"video_preprocessor_config.json"}
