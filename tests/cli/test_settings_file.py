"""Settings from a file: what it may say, where it is sought, and what goes before it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from heddle.cli import run, settings_file
from heddle.cli.options import Sources
from heddle.config import EngineConfig, HubConfig, RegistryConfig, ServerConfig
from heddle.defaults import SETTINGS
from heddle.errors import ConfigError
from heddle.sampling_params import Stage
from heddle.settings import settings

if TYPE_CHECKING:
    from pathlib import Path

CONFIGS = EngineConfig, RegistryConfig, ServerConfig


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    return Writer(tmp_path / "heddle.toml", monkeypatch)


class Writer:
    """Writes the file of HEDDLE_CONFIG."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        monkeypatch.setenv("HEDDLE_CONFIG", str(path))

    def __call__(self, text: str, **options: str) -> Sources:
        self.path.write_text(text)
        return Sources(options).read_again()


def test_an_option_goes_before_a_variable_and_that_before_the_file(
    write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_QUEUE", "5")
    sources = write("slots = 1\nqueue = 1\nbatch_tokens = 1\n", slots="4")
    config = sources.resolve(EngineConfig())
    assert (config.slots, config.queue, config.batch_tokens) == (4, 5, 1)
    assert config.batch_window_us == EngineConfig().batch_window_us


def test_a_file_may_have_every_setting_by_its_name(write: Writer) -> None:
    rows = {one.name: one for config in CONFIGS for one in settings(config)}
    defaults: dict[str, object] = {name: one.default for name, one in rows.items()}
    defaults |= {name: row.default for name, row in SETTINGS.items()}
    defaults |= {name: [] for name, one in rows.items() if one.kind == "LIST"}
    defaults["samplers"] = ["top_k"]
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in defaults.items())
    sources = write(text.replace("null", "1"))
    assert sources.resolve(EngineConfig()) == EngineConfig()
    assert sources.resolve(RegistryConfig()) == RegistryConfig()
    server = sources.resolve(ServerConfig())
    assert replace(server, sampling={}) == ServerConfig()
    assert server.sampling.keys() == SETTINGS.keys()


def test_values_have_the_types_of_toml(write: Writer) -> None:
    sources = write(
        'kv_cache = "2G"\nmax_body = 2048\nprefix_cache = false\nstream_ping = 3\n'
        'temperature = 0.5\nsamplers = ["top_k", "temperature"]\n'
        'cors = ["http://a.example:1", "localhost"]\n'
        'api_key = ["one: a,b"]'
    )
    engine, server = sources.resolve(EngineConfig()), sources.resolve(ServerConfig())
    assert (engine.kv_cache, engine.prefix_cache) == (2 << 30, False)
    assert (server.max_body, server.stream_ping) == (2048, 3.0)
    assert server.sampling == {"temperature": 0.5, "samplers": (Stage.TOP_K, Stage.TEMPERATURE)}
    assert server.cors == ("http://a.example:1", "localhost")
    assert server.api_key == ("one: a,b",), "commas divide texts of options only"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slot = 3", ":2: there is no setting 'slot'; the nearest name is slots"),
        ("kv-cache = 3", ":2: there is no setting 'kv-cache'; the nearest name is kv_cache"),
        ("zzzzzzzz = 3", ":2: there is no setting 'zzzzzzzz'"),
        ('slots = "3"', ":2: slots must be a whole number, got '3'"),
        ("slots = true", ":2: slots must be a whole number, got True"),
        ("slots = 0", ":2: slots must be at least 1, got 0"),
        ("cors = [\n1.5]", ":2: cors must be a list of texts, such as"),
        ("prefix_cache = 1", ":2: prefix_cache must be true or false, got 1"),
        ("kv_cache = 'much'", ":2: 'much' is not a size"),
        ("stream_ping = nan", ":2: 'nan' is not a number"),
        ("top_p = 3", ":2: top_p must be in "),
        ("# cors\n\n'cors' = ['no']", ":4: cors must be *, localhost or an origin"),
        ("slots =\n", " is not a file in TOML: Invalid value (at line 2, column "),
        ("models = [1]", ":2: models must be a list of texts, or a table for each"),
        ("default = 1", ":2: default must be the name of a model, got 1"),
        ("models.a.slots = 1", ":2: the table of model 'a' must say where the model is"),
        ("[models.a]\nsource = 'x'\nslot = 1", ":4: there is no setting 'slot'; the nearest name"),
        ("[models.a]\nsource = 'x'\nport = 1", ":4: port is no setting of one model; write it"),
        ("[models.a]\nsource = 'x'\nlora = ['a=b']", ":4: lora is no setting of one model"),
        ("x = '''\nslots = 1\n'''\nslots = 'a'\n", ":2: there is no setting 'x'"),
        ("chat_template = '''\nslots = 1\n'''\nslots = 'a'\n", ":5: slots must be a whole number"),
    ],
)
def test_an_error_names_file_line_key_and_value(text: str, said: str, write: Writer) -> None:
    with pytest.raises(ConfigError) as refused:
        sources = write("# slots slot cors port lora\n" + text)
        for config in CONFIGS:
            sources.resolve(config())
    assert refused.value.message.startswith(f"{write.path}{said}")


@pytest.mark.parametrize("text", ['api_key = "sk-one"', 'admin_key = ["sk-one two"]'])
def test_an_error_shows_no_secret(text: str, write: Writer) -> None:
    with pytest.raises(ConfigError) as refused:
        write(text).resolve(ServerConfig())
    assert "sk-one" not in refused.value.message
    assert refused.value.message.startswith(f"{write.path}:1: ")


def test_a_command_without_a_setting_reads_the_file_of_one_with_it(write: Writer) -> None:
    sources = write("slots = 3\noffline = true\nmodels = ['a']")
    assert sources.resolve(HubConfig()).offline


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b"\xff", "it is not UTF-8"), (b"#" * (1 << 21), "is longer than")],
)
def test_a_file_that_cannot_be_read(content: bytes | None, said: str, write: Writer) -> None:
    if content is not None:
        write.path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        Sources({}).read_again()


def test_where_a_file_is_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, named, variable = (tmp_path / name for name in ("own", "named.toml", "variable.toml"))
    environ = {"XDG_CONFIG_HOME": str(own)}
    monkeypatch.setattr(settings_file, "_SYSTEM", tmp_path / "etc")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heddle.toml").write_text("slots = 1")
    assert settings_file.find(None, environ) is None, "not the file of the working folder"
    for folder in (tmp_path / "etc", own / "heddle"):
        folder.mkdir(parents=True)
        (folder / "heddle.toml").touch()
        assert settings_file.find(None, environ) == folder / "heddle.toml"
    environ["HEDDLE_CONFIG"] = str(variable)
    assert settings_file.find(None, environ) == variable
    assert settings_file.find(str(named), environ) == named
    assert run(["list", "--config", str(named)]) == 2
    assert "named.toml' cannot be read: No such file" in capsys.readouterr().err


def test_serve_serves_the_models_of_the_file(
    write: Writer, loaded: list[tuple[str, EngineConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[dict[str, object]] = []

    def serve(_app: object, registry: object, *_: object, **__: object) -> None:
        served.append({"default": registry.default, "names": registry.names})  # type: ignore[attr-defined]

    monkeypatch.setattr("heddle.server.http.process.serve", serve)
    write(
        "port = 0\nslots = 3\nqueue = 9\ndefault = 'two'\n"
        "[models.one]\nsource = 'a.gguf'\nslots = 2\n[models.two]\nsource = 'b.gguf'\n"
    )
    assert run(["serve", "--queue", "7"]) == 0
    assert served == [{"default": "two", "names": ("two", "one")}]
    assert sorted(loaded, key=lambda one: one[0]) == [
        ("a.gguf", EngineConfig(slots=2, queue=7)),
        ("b.gguf", EngineConfig(slots=3, queue=7)),
    ]
    loaded.clear()
    assert run(["serve", "one", "--slots", "5", "--default", "one"]) == 0
    assert loaded == [("a.gguf", EngineConfig(slots=5, queue=9))], "a name of the file; an option"


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_serve_warns_of_keys_that_others_can_read(
    mode: int, write: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    write("port = 0\napi_key = ['sk']")
    write.path.chmod(mode)
    assert run(["serve", "./no-such.gguf"]) == 2
    assert bool(re.search("other users can read the keys in .*chmod 600", caplog.text)) == (
        mode == 0o644
    )


def test_serve_says_that_the_file_of_the_folder_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_CONFIG")
    monkeypatch.setattr(settings_file, "places", lambda _environ: [])
    (tmp_path / "heddle.toml").write_text("slots = 1")
    assert run(["serve", "./no-such.gguf", "--port", "0"]) == 2
    assert "heddle.toml of this folder is not read; --config heddle.toml reads it" in caplog.text
