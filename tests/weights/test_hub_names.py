"""Names of the hub, the choice of files, and the places of the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.config import HubConfig
from heddle.errors import ModelSourceError
from heddle.hub_place import HubPlace, hub_place
from heddle.weights.hub.choice import QUANTS, choose
from heddle.weights.hub.names import HubName, parse
from heddle.weights.sources import find


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/name", HubName("org/name")),
        ("hf:org/name", HubName("org/name")),
        ("hf:gpt2", HubName("gpt2")),
        ("org/name:Q4_K_M", HubName("org/name", "main", "Q4_K_M")),
        ("org/Na.me_1-GGUF@v1.0:UD-Q4_K_XL", HubName("org/Na.me_1-GGUF", "v1.0", "UD-Q4_K_XL")),
        ("hf:org/name@refs/pr/7", HubName("org/name", "refs/pr/7")),
        *((f"org/name@{revision}", None) for revision in ("/tmp/x", ".", "./x", "a//b", "a/")),
        *((path, None) for path in ("name", "./org/name", "/org/name", "~/name", "a/b/c")),
        *((path, None) for path in ("org/file.gguf", "../name", "org/..", "org/", "org/na me")),
    ],
)
def test_names_of_the_hub(model: str, expected: HubName | None) -> None:
    assert parse(model) == expected


@pytest.mark.parametrize("model", ["hf:", "hf:a/b/c", "hf:/a", "hf:org/na me", "hf:org/a@:Q4"])
def test_what_follows_the_prefix_must_be_a_name(model: str) -> None:
    with pytest.raises(ModelSourceError, match=r"is not a name of the hub; write hf:ORG/NAME"):
        parse(model)


def test_an_existing_path_wins_over_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    place = HubPlace(tmp_path / "hub", "http://127.0.0.1:1", offline=True)
    assert find("org/name", tmp_path, place=place).path == tmp_path / "org" / "name"
    with pytest.raises(ModelSourceError, match="may not be asked"):
        find("hf:org/name", tmp_path, place=place)


def test_aliases_are_not_fetched_offline(tmp_path: Path) -> None:
    place = HubPlace(tmp_path / "hub", "http://127.0.0.1:1", offline=True)
    with pytest.raises(ModelSourceError, match=r"smollm2-135m is not in .*models.*--offline"):
        find("smollm2-135m", tmp_path, place=place)


# --- the choice of a GGUF file -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quant", "files", "expected"),
    [
        ("Q4_K_M", ["m-IQ4_K_M.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        ("q4_k_m", ["m.q4_k_m.gguf", "m.q4_k_s.gguf"], "m.q4_k_m.gguf"),
        ("Q4_K", ["m-Q4_K_S.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf"], "m-Q4_K_M.gguf"),
        ("Q4_0", ["m-Q4_0_4_4.gguf", "m-Q4_0.gguf"], "m-Q4_0.gguf"),
        ("Q4_K_M", ["UD/m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        ("UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "m-UD-Q4_K_XL.gguf"),
        ("Q8_0", ["mmproj-m-Q8_0.gguf", "m-Q8_0.gguf"], "m-Q8_0.gguf"),
        (None, ["m-f16.gguf", "m-q8_0.gguf", "m-q5_k_m.gguf", "m-IQ4_XS.gguf"], "m-q5_k_m.gguf"),
        (None, ["m.imatrix.gguf", "anything.gguf"], "anything.gguf"),
        (None, ["m-IQ4_K_M.gguf", "m-Q6_K.gguf", "m-Q8_0.gguf"], "m-Q8_0.gguf"),
        ("_M", ["m-X9_M.gguf", "m-Q5_K_M.gguf"], "m-Q5_K_M.gguf"),  # unknown quants come last
    ],
)
def test_the_file_with_the_quant_is_chosen(
    quant: str | None, files: list[str], expected: str
) -> None:
    chosen = choose(HubName("org/m", quant=quant), ["README.md", *files])
    assert (chosen.first, chosen.is_folder) == ((expected,), False)


def test_a_folder_is_preferred_unless_a_quant_is_named() -> None:
    files = ["config.json", "model.safetensors", "m-Q4_K_M.gguf", "1_Pooling/config.json"]
    chosen = choose(HubName("org/m"), files)
    assert chosen.is_folder
    assert chosen.first == ("1_Pooling/config.json", "config.json")
    assert choose(HubName("org/m", quant="Q4_K_M"), files).first == ("m-Q4_K_M.gguf",)


@pytest.mark.parametrize(
    ("quant", "files", "message"),
    [
        ("Q2_K", ["a-Q4_0.gguf", "a-Q8_0.gguf"], r"'Q2_K'; name one of a-Q4_0, a-Q8_0"),
        (None, ["a-x.gguf", "a-y.gguf"], r"one of the usual types; name one of a-x, a-y"),
        (None, ["notes.txt"], r"no config.json with safetensors and no GGUF file; it has notes"),
        ("Q8_0", ["config.json", "model.safetensors"], r"has no GGUF file; it has config.json"),
        (None, [], "it has no files"),
        ("Q8_0", ["a-Q8_0-00001-of-00002.gguf"], r"lacks a-Q8_0-00002-of-00002.gguf"),
    ],
)
def test_an_error_lists_what_there_is(quant: str | None, files: list[str], message: str) -> None:
    with pytest.raises(ModelSourceError, match=message):
        choose(HubName("org/m", quant=quant), files)


def test_the_documentation_lists_the_order_of_quants() -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "hub.md"
    assert ", ".join(QUANTS) in " ".join(page.read_text().replace("`", "").split())


# --- the cache -----------------------------------------------------------------------------------

HOME = Path("~").expanduser()


@pytest.mark.parametrize(
    ("setting", "variables", "expected"),
    [
        ("", {}, HOME / ".cache/huggingface/hub"),
        ("", {"XDG_CACHE_HOME": "/x"}, Path("/x/huggingface/hub")),
        ("", {"HF_HOME": "/h"}, Path("/h/hub")),
        ("", {"HF_HOME": "/h", "HF_HUB_CACHE": "/c"}, Path("/c")),
        ("/s", {"HF_HOME": "/h", "HF_HUB_CACHE": "/c"}, Path("/s")),
        ("", {"HF_HOME": "/h", "HF_HUB_CACHE": ""}, Path("/h/hub")),
        ("", {"HF_HOME": "", "HF_HUB_CACHE": ""}, HOME / ".cache/huggingface/hub"),
        ("~/s", {}, HOME / "s"),
    ],
)
def test_the_cache_is_where_the_settings_say(
    setting: str, variables: dict[str, str], expected: Path
) -> None:
    assert hub_place(HubConfig(hub_cache=setting), variables).cache == expected


def test_endpoint_and_offline_mode() -> None:
    assert hub_place(HubConfig(), {}).endpoint == "https://huggingface.co"
    assert hub_place(HubConfig(), {"HF_ENDPOINT": "http://h:1/"}).endpoint == "http://h:1"
    assert not hub_place(HubConfig(), {"HF_HUB_OFFLINE": "0"}).offline
    assert hub_place(HubConfig(), {"HF_HUB_OFFLINE": "yes"}).offline
    assert hub_place(HubConfig(offline=True), {}).offline
