"""A package of somebody else, installed by pip, that joins through the doors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models.tiny.qwen3 import MODELS
from wheels import wheel_bytes

SOURCE = Path(__file__).parent / "package" / "heddle_sample.py"
ENTRY_POINT = "[heddle]\n{} = {}\n"

USES = """
import json, sys, urllib.error, urllib.request
from dataclasses import replace
from heddle.config import EngineConfig, ServerConfig
from heddle.hosting.registry import Registry
from heddle.sampling_params import SamplingParams
from live_server import live_server
from heddle.text.chat.dialect import Dialect

def ask(url, **fields):
    body = {"prompt": [1], "max_tokens": 3, "ignore_eos": True}
    sent = urllib.request.Request(
        url, json.dumps(body | fields).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(sent) as answer:
            return json.load(answer)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]

form = Dialect.of("{{ tools }}<CALL>", {"tools"}).form
from heddle.settings import resolve
config = EngineConfig(device="twin", threads=1, kv_cache=1 << 24, slots=1)
config = resolve(config, {"sample_note": "some"})
from heddle.engine import Engine
with Engine.load(sys.argv[1], config) as engine:
    guess = {"drafter": "again", "length": 2}
    plain = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    params = replace(plain, speculation=guess)
    bits = [engine.complete([1, 2, 3], one) for one in (plain, params)]
    three = replace(plain, max_tokens=3)
    only = engine.complete([1], replace(three, logits_processors={"only": {"token": 7}}))
    with live_server(engine) as live:
        host, port = live.address
        with urllib.request.urlopen(f"http://{host}:{port}/sample") as said:
            route = json.load(said)
        url = f"http://{host}:{port}/v1/completions"
        answers = {
            name: ask(url, logits_processors={name: {"token": 7}}) for name in ("only", "none")
        }
        word = only.text[: len(only.text) // 3]
        words = ask(url, response_format={"type": "sample", "words": [word]})
        pitches = [ask(url, sample_pitch=pitch) for pitch in (9, 10)]
        other = ask(url, response_format={"type": "text", "words": ["a"]})
    drafted = bits[1].usage.drafted_tokens
print(json.dumps({
    "form": type(form).__name__, "architecture": engine.model.info.architecture,
    "same": bits[0].tokens == bits[1].tokens, "drafted": drafted, "route": route,
    "answers": answers, "words": words, "other": other, "pitches": pitches,
    "only": [one.token for one in only.tokens], "text": only.text,
}))
"""


def install(folder: Path, source: str, value: str, name: str = "sample") -> dict[str, str]:
    """Install a package by pip; returns the environment that has it."""
    members = {
        "heddle_sample.py": source.encode(),
        "heddle_sample-1.0.dist-info/entry_points.txt": ENTRY_POINT.format(name, value).encode(),
    }
    wheel = folder / "heddle_sample-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel_bytes("heddle-sample", "1.0", members))
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, capture_output=True)
    paths = [str(target), str(Path(__file__).parent.parent), *sys.path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return install(
        tmp_path_factory.mktemp("package"), SOURCE.read_text(), "heddle_sample:EXTENSION"
    )


def heddle(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heddle", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_package_brings_one_of_each(environment: dict[str, str], tmp_path: Path) -> None:
    settings = {"quant_method": "unchanged"}
    model = MODELS[0].write_folder(tmp_path / "tiny", quantization_config=settings)
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "sample"}))
    tensors = model / "model.safetensors"
    named = tensors.read_bytes().replace(b"post_attention_layernorm", b"norm_before_feed_forward")
    tensors.write_bytes(named)  # the family brings this name
    command = [sys.executable, "-c", USES, str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["form"] == "Shouted"
    assert found["architecture"] == "sample"
    assert found["same"], "guesses change nothing"
    assert found["drafted"] > 0
    assert found["only"] == [7] * 3
    assert found["answers"]["only"] == found["text"]
    refused = found["answers"]["none"]
    assert refused["param"] == "logits_processors"
    assert "there is no logits processor 'none'; known: only." in refused["message"]
    assert found["words"] * 3 == found["text"]
    assert isinstance(found["pitches"][0], str)
    assert found["pitches"][1]["param"] == "sample_pitch"
    assert found["other"]["param"] == "response_format.words"
    assert found["route"] == {"models": ["tiny"], "note": ["some"]}


def test_its_setting_is_an_option_and_a_variable(environment: dict[str, str]) -> None:
    assert "--sample-note TEXT" in heddle(environment, "serve", "--help").stdout
    refused = heddle(environment, "serve", "--sample-note", "loud")
    assert refused.returncode == 2
    said = "sample_note must be one of none, some, got"
    assert refused.stderr.startswith(f"heddle: --sample-note: {said} 'loud'")
    refused = heddle(environment | {"HEDDLE_SAMPLE_NOTE": "low"}, "serve")
    assert refused.stderr.startswith(f"heddle: HEDDLE_SAMPLE_NOTE: {said} 'low'")


def test_a_setting_with_the_name_of_another_is_refused(tmp_path: Path) -> None:
    source = SOURCE.read_text().replace("sample_note", "slots")
    refused = heddle(install(tmp_path, source, "heddle_sample:EXTENSION"), "serve")
    assert refused.returncode == 2
    assert refused.stderr.startswith("heddle: 2 settings are named 'slots'")


def test_its_command_is_one_of_heddle(environment: dict[str, str]) -> None:
    assert heddle(environment, "greet", "you").stdout == "hello you\n"
    page = heddle(environment, "--help").stdout
    assert re.search(r"\n  greet +Greet somebody\.\n", page)


@pytest.mark.parametrize(
    ("name", "source", "value", "reason"),
    [
        ("sample", "1 / 0", "heddle_sample:EXTENSION", "cannot be imported: ZeroDivisionError"),
        ("sample", "THING = 3", "heddle_sample:THING", "is a int, not an extension of Heddle"),
        ("torch", "THING = 3", "heddle_sample:THING", "two extensions are named 'torch'"),
    ],
)
def test_a_package_that_cannot_join_is_named(
    tmp_path: Path, name: str, source: str, value: str, reason: str
) -> None:
    done = heddle(install(tmp_path, source, value, name), "--version")
    assert done.returncode == 2
    assert done.stderr.startswith("heddle: ")
    assert "'heddle-sample'" in done.stderr
    assert reason in done.stderr
    assert "ninstall" in done.stderr
