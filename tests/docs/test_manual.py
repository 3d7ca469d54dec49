"""The manual pages that scripts/write_man.py makes from the help."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import write_man
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.settings import settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("man") / "man1"
    subprocess.run([sys.executable, write_man.__file__, made], check=True, capture_output=True)
    return made


def test_each_command_has_a_page_which_the_page_above_names(folder: Path) -> None:
    pages = {path.stem: path.read_text("utf-8") for path in folder.iterdir()}
    assert {"heddle", "heddle-serve", "heddle-config", "heddle-bench-load"} <= pages.keys()
    for name in pages.keys() - {"heddle"}:
        above = name.rpartition("-")[0]
        assert f"{write_man.roff(name)}(1)" in pages[above]
        assert f"{write_man.roff(above)}(1)" in pages[name]


def test_the_page_of_serve_has_every_setting(folder: Path) -> None:
    page = (folder / "heddle-serve.1").read_text("utf-8").replace("\\-", "-")
    found = set(re.findall(r"^\.B (?:-\w, )?(--[a-z\[\]-]+)", page, re.MULTILINE))
    for config in (EngineConfig, RegistryConfig, ServerConfig):
        for setting in settings(config):
            no = setting.option.replace("--", "--[no-]", 1)
            assert (no if setting.kind == "SWITCH" else setting.option) in found
    assert "\n.B -h, --help\n" in page
    assert "HEDDLE_KV_CACHE" in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_has_no_warnings(folder: Path) -> None:
    for path in folder.iterdir():
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", str(path)],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
        )
        assert done.stderr == ""
        assert done.stdout


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("--kv-cache", "\\-\\-kv\\-cache"),
        (".gguf", "\\&.gguf"),
        ("'a' and", "\\&'a' and"),
        ("a\n  .b", "a .b"),
        ("\\n", "\\en"),
    ],
)
def test_texts_are_no_requests_of_roff(text: str, written: str) -> None:
    assert write_man.roff(text) == written
