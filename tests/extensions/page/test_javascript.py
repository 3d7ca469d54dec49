"""The form of the page's JavaScript, which no other tool checks: there is no build step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from heddle.extensions.page.files import page_files

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = {file.name: file.content.decode() for file in page_files()}
MODULES = {name: text for name, text in FILES.items() if name.endswith(".js")}
LONGEST_LINE = 110
LONGEST_FUNCTION = 50

FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "localStorage")
"""What would insert text as HTML, run it, or keep a key."""

each_module = pytest.mark.parametrize("name", MODULES)


@pytest.mark.parametrize("name", FILES)
def test_lines(name: str) -> None:
    text = FILES[name]
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{name}:{number}"
        assert line == line.rstrip(), place
        assert "\t" not in line, place
        assert len(line) <= LONGEST_LINE or name.endswith((".svg", ".html")), place
        indent = len(line) - len(line.lstrip())
        assert indent % 2 == 0 or line.lstrip().startswith(("*", "/*")), place


@each_module
def test_a_module_says_what_it_is_for(name: str) -> None:
    assert MODULES[name].startswith("// ")


@each_module
def test_nothing_inserts_or_runs_text(name: str) -> None:
    assert [one for one in FORBIDDEN if one in MODULES[name]] == []
    if name != "js/sandbox.js":
        assert "new Function" not in MODULES[name]


@each_module
def test_exports_have_types(name: str) -> None:
    lines = MODULES[name].splitlines()
    for number, line in enumerate(lines):
        if line.startswith("export ") and "class" not in line:
            assert lines[number - 1].endswith("*/"), f"{name}:{number + 1} has no JSDoc"


@each_module
def test_imports_name_exports_of_files(name: str) -> None:
    imports = re.findall(r"import \{([^}]+)\} from '([^']+)'", MODULES[name])
    for names, path in imports:
        parts = name.split("/")[:-1]
        for step in path.split("/"):
            if step == "..":
                parts.pop()
            elif step != ".":
                parts.append(step)
        module = MODULES["/".join(parts)]
        for one in map(str.strip, names.split(",")):
            if one:
                exported = rf"export (?:async )?(?:function\*?|class|const) {one}\b"
                assert re.search(exported, module), one
                assert len(re.findall(rf"\b{one}\b", MODULES[name])) > 1, f"{one} is unused"


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Names and lengths of functions and methods, by their indentation."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        begins = re.match(
            r"( *)(?:export )?(?:static )?(?:async )?(?:function\*? )?([\w*]+)\(.*\) \{$", line
        )
        if begins and begins[2] not in ("if", "for", "while", "switch", "catch"):
            end = lines.index(begins[1] + "}", number)
            yield begins[2], end - number + 1


@each_module
def test_functions_fit_a_screen(name: str) -> None:
    assert [one for one in functions(MODULES[name]) if one[1] > LONGEST_FUNCTION] == []
