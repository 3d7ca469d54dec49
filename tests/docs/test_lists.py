"""Lists and tables of docs/ agree with the program."""

from __future__ import annotations

import dataclasses
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from heddle import extensions
from heddle.config import EngineConfig, HubConfig, RegistryConfig, ServerConfig
from heddle.doors import Device, Extension, refer
from heddle.settings import settings
from heddle.weights.tensor_types import TensorType

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "index.md").read_text("utf-8")
EXTENSIONS = (ROOT / "docs" / "concepts" / "extensions.md").read_text("utf-8")
ROOMS = (ROOT / "docs" / "design.md").read_text("utf-8").partition("      extensions/ ")[2]
FOLDERS = [path.parent for path in sorted(Path(extensions.__path__[0]).glob("*/__init__.py"))]


def test_the_tensor_types_are_those_of_the_table() -> None:
    (line,) = [line for line in REFERENCE.splitlines() if line.startswith("| Tensor types |")]
    listed = line.split("|")[2].strip().split(", ")
    assert sorted(listed) == sorted(kind.name for kind in TensorType.supported())


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(folder / "README.md" for folder in FOLDERS),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    """Paths begin at the repository, at the package, or beside the page. Examples are left out."""
    named = re.findall(r"`([\w.-]+/[\w./-]*\.(?:py|pyi|cpp|h|sh|toml))`", page.read_text("utf-8"))
    places = (ROOT, ROOT / "src" / "heddle", page.parent)
    assert [
        path
        for path in named
        if "NAME" not in path
        and not path.startswith("heddle_hello/")
        and not any((place / path).exists() for place in places)
    ] == []


def test_the_newest_version_of_the_changelog_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    headings = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert headings[0] == ("Unreleased", "")
    version, date = headings[1]
    assert version == project["version"]
    assert re.fullmatch(r" - \d{4}-\d\d-\d\d", date)


def test_pages_agree_with_the_tables_of_the_program() -> None:
    """The pages whose tables scripts/write_tables.py writes."""
    script = runpy.run_path(str(ROOT / "scripts" / "write_tables.py"))
    pages: dict[Path, str] = script["pages"]()
    for path, page in pages.items():
        assert path.read_text("utf-8") == page
    assert {path.name for path in pages} == {
        "sampling.md",
        "fields.md",
        "files.md",
        "settings.md",
        "metrics.md",
        "models.md",
    }


@pytest.mark.parametrize("config", [HubConfig, EngineConfig, RegistryConfig, ServerConfig])
def test_each_setting_has_a_row_and_a_meaning(
    config: type[HubConfig | RegistryConfig | ServerConfig],
) -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8").replace("--[no-]", "--")
    for one in settings(config):
        assert one.kind == "PARAMETER" or f"| `{one.option}` |" in page, one.option
        assert one.doc.strip()


@pytest.mark.parametrize("door", [one.name for one in dataclasses.fields(Extension)])
def test_the_page_about_extensions_names_who_uses_a_door(door: str) -> None:
    row = next(line for line in EXTENSIONS.splitlines() if line.startswith(f"| `{door}`"))
    users = [
        f"`{folder.name}`"
        for folder in FOLDERS
        if getattr(refer(f"heddle.extensions.{folder.name}:EXTENSION"), door)
    ]
    assert row.split("|")[-2].strip() == (", ".join(users) or "other packages")


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(Device)])
def test_the_page_about_extensions_has_a_row_for_each_part_of_a_device(name: str) -> None:
    assert f"\n| `{name}` |" in EXTENSIONS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_extension_has_a_row_a_readme_and_tests(folder: Path) -> None:
    assert f"\n| `{folder.name}` |" in EXTENSIONS
    assert re.search(rf"^ +[\w/ ]*\b{folder.name}/", ROOMS, re.M)
    assert (ROOT / "tests" / "extensions" / folder.name).is_dir()
    readme = (folder / "README.md").read_text("utf-8")
    targets = [part.partition(")")[0].partition("#")[0] for part in readme.split("](")[1:]]
    assert [target for target in targets if not (folder / target).exists()] == []


def test_the_page_about_a_model_shows_the_file_of_qwen3() -> None:
    page = (ROOT / "docs" / "concepts" / "family.md").read_text("utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    file = (ROOT / "src" / "heddle" / "models" / "families" / "qwen3.py").read_text("utf-8")
    assert "FAMILY = Family(" in shown
    code = [line for line in file.splitlines() if line]
    assert code[-len(shown.splitlines()) :] == shown.splitlines()
