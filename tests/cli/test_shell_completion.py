"""Completion in shells: its scripts, its installation, and what bash completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

COMPLETES = {
    "bash": "complete -o default -F _heddle_completion heddle",
    "zsh": "compdef _heddle_completion heddle",
    "fish": "complete --command heddle",
}
INSTALLED = {
    "bash": ".bash_completions/heddle.sh",
    "zsh": ".zfunc/_heddle",
    "fish": ".config/fish/completions/heddle.fish",
}


def heddle(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "heddle", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        env=os.environ | {"TERM": "dumb"} | variables,
    )
    return done.stdout


@pytest.mark.parametrize("shell", COMPLETES)
def test_the_script_of_each_shell(shell: str, tmp_path: Path) -> None:
    script = heddle(_HEDDLE_COMPLETE=f"source_{shell}")
    assert COMPLETES[shell] in script
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([program, "-n", tmp_path / "script"], check=True)


@pytest.mark.parametrize("shell", INSTALLED)
def test_it_is_installed_in_the_home_folder(shell: str, tmp_path: Path) -> None:
    # The variable lets the shell be named: that of the tests is unknown.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    said = heddle("--install-completion", shell, **named)
    assert f"{shell} completion installed in" in said
    assert COMPLETES[shell] in (tmp_path / INSTALLED[shell]).read_text()
    assert COMPLETES[shell] in heddle("--show-completion", shell, **named)


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "heddle serve --kv"}),
        (
            "fish",
            {
                "_TYPER_COMPLETE_ARGS": "heddle serve --kv",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
        ),
    ],
)
def test_other_shells_get_options(shell: str, variables: dict[str, str]) -> None:
    said = heddle(_HEDDLE_COMPLETE=f"complete_{shell}", **variables)
    assert "--kv-cache" in said
    assert "--slots" not in said


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("heddle serv", {"serve"}),
        ("heddle engram mer", {"merge"}),
        ("heddle serve --kv-c", {"--kv-cache"}),
    ],
)
def test_bash_completes(words: str, expected: set[str], tmp_path: Path) -> None:
    program = tmp_path / "heddle"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m heddle "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_HEDDLE_COMPLETE=source_bash heddle)"\n'
        f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}\n"
        "_heddle_completion heddle\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert set(done.stdout.split()) == expected
