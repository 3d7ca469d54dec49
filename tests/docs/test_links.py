"""Links in Markdown files of the repository lead to files that exist, and to headings in them.

`zensical build --strict` checks docs/ alone, and no link into the rest of the repository.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2$", re.M | re.S)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)|^\[[^\]]+\]: (\S+)", re.M)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
_OTHER = re.compile(r"[a-z][a-z0-9+.-]*:")
"""The begin of an address elsewhere, such as https: or mailto:."""


def pages() -> list[Path]:
    """All but the templates of GitHub, whose links are relative to the page of a request."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", ":!.github"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.split()]


def prose(page: Path) -> str:
    """The text of a page without blocks of code."""
    return _FENCE.sub("", page.read_text("utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """The ids of a page's headings, as GitHub and Zensical make them, and of its HTML."""
    text = prose(page)
    found: list[str] = []
    for heading in _HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.append(re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-"))
    counts = Counter(found)
    again = [f"{name}{mark}{n}" for name in counts for mark in "-_" for n in range(1, counts[name])]
    return {*found, *again, *re.findall(r"(?:id|name)=\"([^\"]+)\"", text)}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in (a or b for a, b in _LINK.findall(_CODE.sub("", prose(page)))):
        if _OTHER.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_lost = anchor and target.suffix == ".md" and anchor not in anchors(target)
        if not target.exists() or is_lost:
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One `two`, three\n\n## Same\n\n## Same\n")
    good = "[a](other.md#one-two-three) [b](#here) [c](https://x.y/z) ![d](other.md)"
    page.write_text(
        f"# Here\n{good} [e](other.md#same-1)\n`[f](none.md)`\n```\n[g](none.md)\n```\n"
        "[h](none.md) [i](other.md#four) [j](#there)\n\n[k]: nowhere.md\n"
    )
    assert broken(page) == ["none.md", "other.md#four", "#there", "nowhere.md"]
