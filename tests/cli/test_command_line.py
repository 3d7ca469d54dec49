"""The command line: what it accepts, and its errors."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import templates
from alone import IS_CORE_ALONE
from fake_executor import FakeExecutor
from fake_model import fake_model
from gguf_writer import Tensor, write_gguf
from heddle.cli import BROKEN_PIPE, INTERRUPTED, run
from heddle.config import DEFAULT_MODEL, EngineConfig, RegistryConfig, ServerConfig
from heddle.engine import Engine
from heddle.server import app as server_app
from heddle.server.http import process
from heddle.settings import GROUPS, settings
from heddle.weights.tensor_types import TensorType
from models.tiny.llama import PLAIN
from patience import PATIENCE
from tiny_hub import TINY, TOKENIZER

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI

    from heddle.hosting.registry import Registry

NOBODYS = "~no-such-user/x.gguf"
"""A path in the home folder of a user who does not exist."""


def heddle(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "heddle", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | {"COLUMNS": "200", "TERM": "dumb"} | variables,
    )


def test_help_lists_the_commands() -> None:
    done = heddle("--help")
    assert done.returncode == 0
    for command in ("serve", "chat", "pull", "inspect", "list", "rm", "config"):
        assert re.search(rf"\b{command}\b", done.stdout)


@pytest.mark.extensions
def test_help_lists_the_commands_of_extensions() -> None:
    page = heddle("--help").stdout
    for command in ("bench", "doctor", "engram", "imatrix", "quantize", "suggest", "top"):
        assert re.search(rf"\b{command}\b", page)


def modules_after(command: str) -> set[str]:
    """The modules that a process has imported when it has run the command."""
    script = f"import sys; from heddle.cli import run; run(['{command}']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_neither_engine_nor_server() -> None:
    modules = modules_after("--help")
    assert "heddle.cli.serve" in modules
    assert not modules & {"numpy", "fastapi", "pydantic", "httpx", "tokenizers", "heddle.engine"}


def test_a_command_imports_no_other_command() -> None:
    modules = modules_after("list")
    assert "heddle.cli.cached" in modules
    assert not modules & {"heddle.cli.serve", "heddle.cli.chat", "heddle.extensions.bench.commands"}


def test_a_process_may_run_one_command_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("inspect", "pull"):
        assert run([command, "--help"]) == 0
    assert run(["--help"]) == 0
    commands = capsys.readouterr().out.partition("\nCommands:\n")[2]
    assert re.findall(r"^  (\w+)", commands, re.MULTILINE)[:4] == [
        *("serve", "chat", "pull", "inspect"),
    ]


def options_of(page: str, panel: str) -> set[str]:
    """The options in one panel of a help page. A switch has its name only."""
    lines = page.partition(f"\n{panel.capitalize()}:\n")[2].partition("\n\n")[0].splitlines()
    names = (line.split()[0] for line in lines if line.startswith("  -"))
    return {name.replace("[no-]", "") for name in names}


def test_the_page_of_serve_has_every_setting_in_the_panel_of_its_group() -> None:
    page = heddle("serve", "--help").stdout
    described = [*settings(ServerConfig), *settings(RegistryConfig), *settings(EngineConfig)]
    for group in GROUPS:
        expected = {setting.option for setting in described if setting.group == group}
        assert options_of(page, group) == expected
    assert "HEDDLE_KV_CACHE for --kv-cache" in page
    assert "[default: 32M]" in page


def test_a_conversation_has_no_settings_of_servers() -> None:
    page = heddle("chat", "--help").stdout
    listed = [group for group in GROUPS if options_of(page, group)]
    assert listed == ["model", "memory", "speculation", "devices"]
    assert heddle("chat", "--queue", "3").stderr.startswith("heddle: No such option: --queue")


COMMANDS = [
    [],
    *([name] for name in ("serve", "chat", "pull", "inspect", "suggest", "quantize", "imatrix")),
    *([name] for name in ("config", "doctor", "list", "rm", "bench", "engram", "top")),
    *(["bench", name] for name in ("speed", "prefix", "load", "stress")),
    *(["engram", name] for name in ("build", "inspect", "merge", "prune")),
]


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_help_fits_the_terminal(
    command: list[str],
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*command, "--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"Usage: {' '.join(['heddle', *command])}")
    assert max(map(len, page.splitlines())) <= columns
    assert not re.search(r"<(str|int|float|bool|path)", page)


@pytest.mark.extensions
def test_the_page_of_bench_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "-h"]) == 0
    page = capsys.readouterr().out
    for name in ("speed", "prefix", "load", "stress"):
        assert re.search(rf"^  {name} ", page, re.MULTILINE)


def test_a_shell_completes_commands_and_options() -> None:
    words = {"COMP_WORDS": "heddle serve --kv", "COMP_CWORD": "2"}
    done = heddle(**words, _HEDDLE_COMPLETE="complete_bash")
    assert {"--kv-cache", "--kv-type"} <= {*done.stdout.split()}
    assert all(word.startswith("--kv") for word in done.stdout.split())
    script = heddle("--show-completion", "bash").stdout
    assert "complete -o default -F _heddle_completion heddle" in script


def test_version() -> None:
    done = heddle("--version")
    assert done.returncode == 0
    assert re.match(r"heddle (\d+\.\d+.*|\(not installed.*\))\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--slots", "x"], "--slots: 'x' is not a whole number"),
        (["serve", "--port", "70000"], "--port: port must be at most 65535, got 70000"),
        (["serve", "--colour"], "No such option: --colour"),
        (["serve", "a", "b"], "a does not exist"),
        (["weave"], "No such command 'weave'"),
        (["chat", "--temperature", "hot"], "'--temperature'"),
        (["chat", "--temperature", "-1"], "temperature must be at least 0"),
        (["chat", "/no/such.gguf"], "/no/such.gguf"),
        (["bench", "--streams", "1,x"], "--streams: '1,x'"),
        (["bench", "--streams", "1,99999999999"], "--streams: 99999999999 streams need"),
        (["bench", "--threads", "1000000"], "--threads: threads must be at most 1024"),
        (["bench", "--rounds", "0"], "'--rounds'"),
        (["inspect", "no-such-model"], "no-such-model"),
        (["pull", "no-such-model"], "no-such-model"),
        *(
            ([command, NOBODYS], f"model: '{NOBODYS}' names the home folder of an unknown user")
            for command in ("serve", "chat", "bench", "inspect", "pull")
        ),
        (["serve", "--api-key-file", NOBODYS], f"api_key_file: '{NOBODYS}' names the home"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("heddle: ")
    assert err.count("\n") == 1
    assert said in err


def test_wrong_input_from_the_shell() -> None:
    done = heddle("serve", HEDDLE_SLOTS="none")
    assert done.returncode == 2
    assert done.stderr == "heddle: HEDDLE_SLOTS: 'none' is not a whole number\n"


def test_a_home_that_is_nobodys(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("HEDDLE_HOME", NOBODYS)
    assert run(["pull", DEFAULT_MODEL]) == 2
    assert f"HEDDLE_HOME: '{NOBODYS}' names the home" in capsys.readouterr().err


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("buy milk")
    assert run(["inspect", str(path)]) == 2
    assert "is not a GGUF file" in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_model_that_heddle_cannot_run_is_described_and_refused(
    form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(TINY)
    assert run(["inspect", str(path), *form]) == 0
    for content, reason in (
        (TINY.replace(b"llama", b"lamaa"), "'lamaa' is not supported; the nearest name is llama; "),
        (TINY.replace(b"gpt2", b"gpt9"), "gpt9"),
    ):
        capsys.readouterr()
        path.write_bytes(content)
        assert run(["inspect", str(path), *form]) == 2
        shown = capsys.readouterr()
        assert "general.architecture" in shown.out
        assert reason in shown.err


def test_a_model_with_a_type_that_heddle_cannot_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = next(one for one in TensorType if not one.is_supported)
    strange = Tensor.random("strange.weight", kind, (1, kind.block_elements), seed=1)
    metadata = PLAIN.metadata() | TOKENIZER
    path = write_gguf(tmp_path / "strange.gguf", metadata, [*PLAIN.tensors(), strange])
    assert run(["inspect", str(path)]) == 2
    assert f"tensor strange.weight of type {kind.name} is not supported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (templates.QWEN3, ("Hermes: <tool_call> </tool_call>", "<think> </think>")),
        (templates.CHATML, ("generic: a system message describes tools. Hermes: ", "no marks")),
        ("{{ messages ", ("unknown: the chat template does not parse: ",)),
        (None, ("no chat template",)),
    ],
)
def test_inspect_says_how_a_model_writes_calls_and_reasoning(
    template: str | None,
    said: tuple[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    metadata = PLAIN.metadata() | TOKENIZER | {"tokenizer.chat_template": template}
    kept = {key: value for key, value in metadata.items() if value is not None}
    path = write_gguf(tmp_path / "tiny.gguf", kept, PLAIN.tensors())
    assert run(["inspect", str(path), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert list(answers) == ["calls", "reasoning"][: len(said)]
    assert all(text.startswith(one) for text, one in zip(answers.values(), said, strict=True))
    assert run(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert all(one in shown for one in said)


def break_loading(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Engine, "load", load)


def test_a_bug_is_one_line_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_loading(monkeypatch, RuntimeError("the warp\nbroke"))
    assert run(["chat", DEFAULT_MODEL]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "RuntimeError: the warp broke" in err
    assert "HEDDLE_DEBUG=1" in err


@pytest.mark.parametrize("by_option", [False, True])
def test_debugging_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by_option: bool
) -> None:
    break_loading(monkeypatch, RuntimeError("the warp broke"))
    if not by_option:
        monkeypatch.setenv("HEDDLE_DEBUG", "1")
    assert run(["--debug", "chat"] if by_option else ["chat"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert logging.getLogger("heddle").getEffectiveLevel() == logging.DEBUG
    run(["--version"])  # the next command line decides anew


def test_interrupting_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_loading(monkeypatch, KeyboardInterrupt())
    assert run(["chat"]) == INTERRUPTED
    assert "Traceback" not in capsys.readouterr().err


def test_no_command_shows_three_to_begin_with() -> None:
    done = heddle()
    assert (done.returncode, done.stderr) == (0, "")
    page, _, end = done.stdout.partition("\n\n")
    assert re.findall(r"^heddle (\w+)", page, re.MULTILINE) == ["chat", "serve", "pull"]
    assert max(map(len, page.splitlines())) <= 100
    assert IS_CORE_ALONE or "heddle suggest names better ones for this machine. " in end
    assert end.endswith("heddle --help lists all commands.\n")


@pytest.mark.extensions
def test_a_command_with_commands_prints_its_help() -> None:
    assert heddle("engram").stderr.startswith("Usage: heddle engram")


def test_closed_standard_output_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # what Python makes of `>&-`
    assert run(["--version"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "FILE"], ["list", "--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_ends_the_command_quietly(
    arguments: list[str], unbuffered: str, tmp_path: Path
) -> None:
    file = str(PLAIN.write(tmp_path / "plain.gguf"))
    arguments = [file if one == "FILE" else one for one in arguments]
    command = [sys.executable, "-m", "heddle", *arguments]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command,
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, b"")


@pytest.mark.extensions
def test_settings_reach_the_engine(
    loaded: list[tuple[str, EngineConfig]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEDDLE_QUEUE", "7")
    monkeypatch.setenv("HEDDLE_SLOTS", "1")
    arguments = ["--slots", "2", "--kv-cache", "1G", "--streams", "1", "--rounds", "1"]
    arguments += ["--depths", "0", "--prompt-tokens", "16"]
    assert run(["bench", *arguments]) == 0
    expected = EngineConfig(slots=2, queue=7, kv_cache=1 << 30)
    assert loaded == [(DEFAULT_MODEL, expected)]
    capsys.readouterr()


def test_serve_on_a_busy_port_loads_nothing(
    loaded: list[tuple[str, EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run(["serve", "--port", str(port)]) == 2
    assert loaded == []
    message = f"heddle: 127.0.0.1 port {port} is in use; choose another port with --port\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--admin-key", "sk-boss"], True),
        (["--host", "0.0.0.0", "--api-key", "sk-user"], False),
        (["--host", "127.0.0.1"], False),
    ],
)
def test_serve_warns_of_clients_from_elsewhere(
    options: list[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(["serve", "./no-such.gguf", "--port", "0", *options]) == 2
    assert ("0.0.0.0 is reachable from other machines" in caplog.text) == warned


def test_serve_with_bad_keys_loads_nothing(
    loaded: list[tuple[str, EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--port", "0", "--api-key-file", "/no/such/keys"]) == 2
    assert run(["serve", "--port", "0", "--api-key", "one", "--api-key", "two words"]) == 2
    assert loaded == []
    no_file, bad_key = capsys.readouterr().err.splitlines()
    assert no_file.startswith("heddle: api_key_file: cannot read '/no/such/keys': No such file")
    assert bad_key.startswith("heddle: --api-key: api_key: key 2 of 2")


@pytest.mark.parametrize(
    ("stop", "options"),
    [(signal.SIGINT, []), (signal.SIGTERM, [] if IS_CORE_ALONE else ["--no-page"])],
)
def test_serve_says_where_it_is_and_stops_when_told(
    loaded: list[tuple[str, EngineConfig]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: signal.Signals,
    options: list[str],
) -> None:
    lines: list[str] = []
    answers: list[int] = []
    frozen: list[tuple[int, bool]] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append((len(loaded), gc.isenabled())))

    def visit(url: str) -> None:
        try:
            answers.append(httpx.get(f"{url}/models", timeout=PATIENCE).status_code)
        finally:
            os.kill(os.getpid(), stop)

    def note(line: str, **_: Any) -> None:
        lines.append(line)
        if line.startswith("ready"):
            threading.Thread(target=visit, args=(line.split()[1],)).start()

    monkeypatch.setattr("builtins.print", note)
    assert run(["serve", "--port", "0", "--slots", "3", *options]) == 0
    assert answers == [200]
    assert lines.pop(0).startswith(f"No model named: using {DEFAULT_MODEL}")
    assert lines[0].startswith("model     fake")
    assert lines[1] == "runs on   nothing real"
    assert lines[2].startswith("slots     3 of 512 tokens")
    assert lines[3] == "names     fake; --any-model accepts every model name in a request"
    page = "" if IS_CORE_ALONE or options else r" \(page: http://127\.0\.0\.1:\d+/\)"
    try_it = r"try       curl http://127\.0\.0\.1:\d+/v1/chat/completions -H 'content-type: .*"
    assert re.fullmatch(try_it, lines[4])
    assert re.fullmatch(rf"ready     http://127\.0\.0\.1:\d+/v1{page}", lines[5])
    assert loaded[0][0] == DEFAULT_MODEL
    assert frozen == [(1, False)]
    assert gc.isenabled()


def test_routes_see_the_first_load_of_a_server_that_loads_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may unload the model before the first request, and `/props` still describes it."""
    seen: list[str] = []
    opened = threading.Event()

    def load(source: str, config: EngineConfig, **_: object) -> Engine:
        seen.append(f"load {source}")
        opened.set()
        model = fake_model(FakeExecutor())  # with the name of its source, so no load renames it
        return Engine(replace(model, info=replace(model.info, id=source)), config)

    make = server_app.create_app

    def create_app(registry: Registry, config: ServerConfig) -> FastAPI:
        assert opened.wait(PATIENCE), "the load begins before the application is made"
        with pytest.raises(TimeoutError):  # and ends after it
            registry.begin_known("two").result(0.3)
        registry.on_loaded(lambda name, _engine: seen.append(f"loaded {name}"))
        return make(registry, config)

    monkeypatch.setattr(Engine, "load", load)
    monkeypatch.setattr(server_app, "create_app", create_app)
    monkeypatch.setattr(process, "serve", lambda *_, **__: seen.append("serve"))
    assert run(["serve", "one", "two", "--default", "two", "--autoload", "--port", "0"]) == 0
    assert seen == ["load two", "loaded two", "serve"]


@pytest.mark.parametrize("keys", [[], ["--api-key", "sk-one"]])
def test_the_request_to_copy_says_where_a_key_belongs(
    keys: list[str],
    loaded: list[tuple[str, EngineConfig]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(process, "serve", lambda *_, on_ready, **__: on_ready())
    assert run(["serve", "--port", "0", *keys]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("try "))
    assert ("authorization: Bearer KEY" in line) == bool(keys)
    assert "sk-one" not in line
