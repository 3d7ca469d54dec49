"""Fetch published chat templates for `tests/extensions/call_forms/test_published_templates.py`.

    python scripts/fetch_templates.py

The source package of llama-cpp-python has them: llama.cpp collects them from the models' own pages.
pip downloads the package once (77 MB) and compares its checksum. The script keeps the templates
(450 KB) in HEDDLE_HOME, or in the user's cache folder, and prints the folder. The templates are
other people's texts, so the repository has no copies. The exit status is 77 if pip cannot download
the package.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from heddle.folders import cache_home

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
CHECKSUM = "sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
FOLDER = cache_home() / "chat-templates" / f"{PACKAGE}-{VERSION}"


def main() -> None:
    if not FOLDER.is_dir():
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
            kept = Path(name) / "kept"
            kept.mkdir()
            try:
                archive = downloaded(Path(name))
            except subprocess.CalledProcessError as error:
                print(f"not fetched: {error}. The tests of published templates will be skipped")
                sys.exit(77)
            keep_templates(archive, kept)
            kept.rename(FOLDER)
    print(FOLDER)


def downloaded(folder: Path) -> Path:
    """The package's archive, which pip downloads into `folder`."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE}=={VERSION} --hash={CHECKSUM}\n")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    options = [f"--no-binary={PACKAGE}", f"--dest={folder}", f"--requirement={requirements}"]
    subprocess.run([*download, *options], check=True)
    return next(folder.glob("*.tar.gz"))


def keep_templates(archive: Path, folder: Path) -> None:
    """Write each template of `archive` into `folder`."""
    with tarfile.open(archive) as files:
        for member in files:
            path = Path(member.name)
            if path.suffix == ".jinja" and path.parent.name == "templates":
                content = files.extractfile(member)
                assert content is not None, f"{member.name} is no file"
                (folder / path.name).write_bytes(content.read())


if __name__ == "__main__":
    main()
