"""Names of models in requests: they reach the models' folder, aliases and the hub, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_writer import write_gguf
from heddle.errors import (
    ConfigError,
    ForbiddenError,
    HeddleError,
    InvalidRequestError,
    ModelFileError,
    ModelNotFoundError,
)
from heddle.weights.confine import AllowedModels, models_folder
from heddle.weights.huggingface.sentence_modules import read_sentence_modules


def a_folder(path: Path) -> Path:
    """A folder that looks like a model."""
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The models' folder, beside a file and a folder that are not for requests."""
    write_gguf(tmp_path / "secret.gguf", {})
    a_folder(tmp_path / "private")
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def allowed(models: Path) -> AllowedModels:
    return AllowedModels({"mine": "/srv/any/where.gguf"}, models)


def test_a_configured_name_means_what_the_operator_named(allowed: AllowedModels) -> None:
    assert allowed.source_of("mine") == "/srv/any/where.gguf"


def test_an_alias_is_itself(allowed: AllowedModels) -> None:
    assert AllowedModels().source_of("gemma3-270m") == "gemma3-270m"


@pytest.mark.parametrize("name", ["a.gguf", "a", "org/b", "org/b.gguf", "c", "./c", "org//b"])
def test_models_of_the_folder_are_found(allowed: AllowedModels, models: Path, name: str) -> None:
    write_gguf(models / "a.gguf", {})
    (models / "org").mkdir()
    write_gguf(models / "org" / "b.gguf", {})
    a_folder(models / "c")
    path = Path(allowed.source_of(name))
    assert path.is_absolute()
    assert path.is_relative_to(models)
    assert path.exists()
    assert allowed.source_of(str(path)) == str(path)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.gguf",
        "../secret",
        "../private",
        "x/../../secret.gguf",
        "x/..",
        "..",
        "/etc/passwd",
        "//etc/passwd",
        "/nothing/there",
        "~/secret.gguf",
        "~root/x",
        "pypi:some-package",
        "pypi:some-package==1.0",
        "https://example.org/x.gguf",
        "file:///etc/passwd",
        "org/name",
        "hf:name",
        "org/name:Q4_K_M",
    ],
)
def test_what_requests_may_not_name_is_refused(allowed: AllowedModels, name: str) -> None:
    with pytest.raises(ForbiddenError) as refused:
        allowed.source_of(name)
    assert (refused.value.status, refused.value.param) == (403, "model")
    assert "--hub-models" in refused.value.message


def test_files_outside_are_refused_whether_they_exist_or_not(tmp_path: Path, models: Path) -> None:
    allowed = AllowedModels({}, models)
    texts = []
    for name in ("secret.gguf", "nothing.gguf"):
        for path in (str(tmp_path / name), f"../{name}"):
            with pytest.raises(ForbiddenError) as refused:
                allowed.source_of(path)
            texts.append(refused.value.message.replace(path, "PATH"))
            with pytest.raises(ForbiddenError):
                AllowedModels().source_of(path)
    assert len(set(texts)) == 2  # absolute paths and relative ones


@pytest.mark.parametrize("name", ["nothing", "nothing.gguf", ".", "notes.txt", "x" * 250])
def test_unknown_models_are_not_found(allowed: AllowedModels, models: Path, name: str) -> None:
    (models / "notes.txt").write_text("not a model")
    with pytest.raises(ModelNotFoundError, match="name one of mine, smollm2-135m"):
        allowed.source_of(name)


@pytest.mark.parametrize(
    "name", ["", "x" * 257, "a\0b", "a\nb", "a\\b", "..\\secret.gguf", "\udc80"]
)
def test_what_is_no_name_is_invalid(allowed: AllowedModels, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="printable") as refused:
        allowed.source_of(name)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("link", "target", "name"),
    [
        ("x.gguf", "../secret.gguf", "x.gguf"),
        ("x", "../private", "x"),
        ("folder/tokenizer.json", "/etc/passwd", "folder"),
        ("folder/1_Pooling", "../../private", "folder"),
        ("split-00002-of-00002.gguf", "../secret.gguf", "split-00001-of-00002"),
    ],
)
def test_links_out_of_the_folder_are_refused(
    allowed: AllowedModels, models: Path, link: str, target: str, name: str
) -> None:
    a_folder(models / "folder")
    write_gguf(models / "split-00001-of-00002.gguf", {})
    (models / link).symlink_to(target)
    with pytest.raises(ForbiddenError, match="a link out of the models' folder") as refused:
        allowed.source_of(name)
    assert target not in refused.value.message


def test_links_inside_of_the_folder_are_followed(allowed: AllowedModels, models: Path) -> None:
    write_gguf(models / "a.gguf", {})
    (models / "b.gguf").symlink_to("a.gguf")
    assert allowed.source_of("b") == str(models / "b.gguf")
    (models / "circle.gguf").symlink_to("circle.gguf")
    with pytest.raises(HeddleError):
        allowed.source_of("circle")


def test_a_models_folder_may_itself_be_a_link(models: Path, tmp_path: Path) -> None:
    write_gguf(models / "a.gguf", {})
    (tmp_path / "link").symlink_to(models)
    folder = models_folder(str(tmp_path / "link"))
    assert AllowedModels({}, folder).source_of("a") == str(tmp_path / "link" / "a.gguf")


@pytest.mark.parametrize("name", ["org/name", "hf:org/name", "org/name@main:Q4_K_M"])
def test_a_name_of_the_hub_is_never_a_path(
    models: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models.parent)
    a_folder(models.parent / "org" / "name")  # where the process runs
    source = AllowedModels({}, models, hub=True).source_of(name)
    assert source == "hf:" + name.removeprefix("hf:")


def test_a_false_name_of_the_hub_is_invalid(models: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is not a name of the hub"):
        AllowedModels({}, models, hub=True).source_of("hf:a b")


def test_the_setting_names_a_folder(tmp_path: Path) -> None:
    assert models_folder("") is None
    assert models_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match=r"models_dir: '.*nothing' is not a folder"):
        models_folder(str(tmp_path / "nothing"))


def test_modules_of_a_folder_lie_inside_of_it(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text('[{"type": "x.Pooling", "path": ".."}]')
    with pytest.raises(ModelFileError, match=r"'\.\.', which is not a plain name"):
        read_sentence_modules(tmp_path)
