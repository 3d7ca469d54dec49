"""The core without any extension: a copy of the package that has no folder `extensions`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import heddle
from models.tiny.lfm2 import MODELS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


TESTS = Path(__file__).parent
PLAIN = """
import sys

sys.meta_path[:] = [
    one for one in sys.meta_path if getattr(one, "__module__", "").startswith("_frozen_importlib")
]
"""
"""Imports nothing by the hook of an installation in place, which goes before PYTHONPATH."""
SERVE = [sys.executable, "-m", "heddle", "serve"]


LISTED = (
    "`heddle serve --help` lists the options; an extension that is not installed may bring others"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the copy before the package."""
    folder = tmp_path_factory.mktemp("core")
    package = Path(heddle.__file__).parent
    shutil.copytree(
        package, folder / "heddle", ignore=shutil.ignore_patterns("extensions", "__pycache__")
    )
    for native in _native_modules():  # an installation in place keeps it elsewhere
        shutil.copy(native, folder / "heddle")
    (folder / "sitecustomize.py").write_text(PLAIN, encoding="utf-8")  # each process imports it
    return os.environ | {"PYTHONPATH": str(folder)}


def _native_modules() -> Iterator[str]:
    from heddle import _native

    if _native.__file__ is not None:
        yield _native.__file__


def test_it_has_no_extension_and_says_so(environment: dict[str, str]) -> None:
    code = (
        "from heddle.doors import extensions; from heddle.executors.devices import devices;"
        "from heddle.server.app import apis; print(len(extensions()), *devices(), len(apis()))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0 cpu 2\n"


def test_quantised_weights_need_an_extension(environment: dict[str, str]) -> None:
    code = (
        "from heddle.weights.huggingface.quantised import quantised_matrices as find;"
        "find({'quantization_config': {'quant_method': 'gptq'}}, {}, None)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "UnsupportedModelError: config.json: quantization_config.quant_method" in done.stderr
    assert "'gptq' is not supported; supported: none. Or use the original model" in done.stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--device", "torch"], "device 'torch' is unknown; use one of: cpu"),
        (["--engram", "a=b.engr"], "No such option: --engram"),
        (["--draft", "smollm2-135m"], "No such option: --draft"),
    ],
)
@pytest.mark.model
def test_what_needs_an_extension_is_refused(
    environment: dict[str, str], options: list[str], error: str
) -> None:
    command = [*SERVE, "--port", "0", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert error in done.stderr
    assert ("No such option" in error) == (LISTED in done.stderr)


def test_a_grammar_that_needs_an_extension_is_refused(environment: dict[str, str]) -> None:
    code = (
        "from heddle import Grammar, GrammarError\n"
        "try: Grammar.of('gbnf', 'root ::= [a-z]')\n"
        "except GrammarError as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "grammar cannot be served: no extension is installed that reads grammars of kind 'gbnf';"
        " use one of: json_schema, lark\n"
    )


def test_a_format_that_needs_an_extension_is_refused(environment: dict[str, str]) -> None:
    code = (
        "from heddle.server.generate.fields import ResponseFormat\n"
        "try: ResponseFormat(type='structural_tag')\n"
        "except ValueError as error: print(error.errors()[0]['msg'])"
    )
    command = [sys.executable, "-c", f"{PLAIN}\n{code}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "Input should be 'text', 'json_object' or 'json_schema'\n"


def test_a_family_that_no_extension_brings_is_refused_with_the_known_ones(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = MODELS[0].write_folder(tmp_path / "hybrid")
    command = [*SERVE, str(folder), "--port", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "model_type 'lfm2' is not supported; supported: " in done.stderr
    assert ", gemma3_text, llama, " in done.stderr


ROOMS = (
    "cache cli disk engine executors hosting loading models sampling scheduler server text weights"
)


def test_its_quick_tests_pass(environment: dict[str, str]) -> None:
    """In two processes, so that they take less than a minute."""
    rooms = [str(TESTS / room) for room in ROOMS.split()]
    options = ["-q", "-n", "2", "-p", "no:cacheprovider", "-m", "quick and not extensions", *rooms]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = int(done.stdout.rpartition(" passed")[0].rpartition("\n")[2].split()[-1])
    assert passed > 1300


@pytest.mark.model
def test_it_serves_and_streams_a_chat(environment: dict[str, str]) -> None:
    command = [*SERVE, "--port", "0", "--kv-cache", "64M"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = next(line for line in server.stdout if line.startswith("ready"))
            body = {
                "messages": [{"role": "user", "content": "Name a colour."}],
                "stream": True,
                "max_tokens": 8,
            }
            url = f"{ready.split()[1]}/chat/completions"
            with httpx.stream("POST", url, json=body, timeout=PATIENCE) as answer:
                lines = [line for line in answer.iter_lines() if line]
        finally:
            server.terminate()
    assert lines[-1] == "data: [DONE]"
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-1]]
    assert "".join(one["delta"].get("content") or "" for one in deltas)
