"""Settings: options before variables before defaults, one way to read them all."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import configured
from heddle.config import MAX_MODEL_NAME, EngineConfig, HubConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError
from heddle.extensions.drafters.settings import DrafterSettings
from heddle.extensions.otel.settings import OtelSettings
from heddle.extensions.torch.settings import TorchSettings
from heddle.sampling_params import Stage
from heddle.settings import GROUPS, debug_wanted, of_extensions, resolve, settings
from heddle.sizes import counted, format_size, parse_size


def test_defaults() -> None:
    assert resolve(EngineConfig, {}, {}) == EngineConfig()
    assert resolve(ServerConfig, {"port": None}, {"HEDDLE_PORT": ""}) == ServerConfig()


def test_an_option_goes_before_a_variable() -> None:
    environ = {"HEDDLE_SLOTS": "3", "HEDDLE_QUEUE": "5", "HEDDLE_KV_CACHE": "2GiB"}
    config = resolve(EngineConfig, {"slots": "4"}, environ)
    assert (config.slots, config.queue, config.kv_cache) == (4, 5, 2 << 30)


@pytest.mark.parametrize(
    ("text", "on"),
    [("on", True), ("1", True), ("Yes", True), ("off", False), ("0", False), ("false", False)],
)
def test_a_switch_is_on_or_off(text: str, on: bool) -> None:
    assert resolve(EngineConfig, {}, {"HEDDLE_PREFIX_CACHE": text}).prefix_cache is on
    assert resolve(EngineConfig, {"prefix_cache": text}, {}).prefix_cache is on


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        ({"slots": "many"}, {}, "--slots: 'many' is not a whole number"),
        ({"slots": ""}, {}, "--slots: '' is not a whole number"),
        ({"batch_tokens": "0"}, {}, "--batch-tokens: batch_tokens must be at least 1, got 0"),
        ({}, {"HEDDLE_SLOTS": "1025"}, "HEDDLE_SLOTS: slots must be at most 1024, got 1025"),
        ({}, {"HEDDLE_KV_CACHE": "much"}, "HEDDLE_KV_CACHE: 'much' is not a size"),
        ({"engram_alpha": "x"}, {}, "--engram-alpha: 'x' is not a number, such as 0.5"),
        ({"engram_alpha": "nan"}, {}, "--engram-alpha: 'nan' is not a number"),
        ({}, {"HEDDLE_ENGRAM_ALPHA": "-1"}, "HEDDLE_ENGRAM_ALPHA: engram_alpha must be at least 0"),
        ({"isa": "mmx"}, {}, "--isa: isa must be one of auto"),
        ({}, {"HEDDLE_PREFIX_CACHE": "maybe"}, "HEDDLE_PREFIX_CACHE: 'maybe' is neither on nor"),
    ],
)
def test_an_error_names_where_the_value_came_from(
    options: dict[str, str], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(EngineConfig, options, environ)
    assert refused.value.message.startswith(said)
    assert refused.value.param


def test_the_ends_of_ranges_are_settings_and_nan_is_none() -> None:
    assert EngineConfig(slots=1024).slots == 1024
    assert configured(gpu_memory=0.05).of(TorchSettings).gpu_memory == 0.05
    for wrong in ({"slots": 1025}, {"slots": 0}, {"gpu_memory": math.nan}, {"gpu_memory": 1.01}):
        with pytest.raises(ConfigError, match="must be at "):
            configured(**wrong)
    longest = "a" * MAX_MODEL_NAME
    assert ServerConfig(alias=(longest,)).alias == (longest,)
    for name in ("", longest + "a"):
        with pytest.raises(ConfigError, match="alias must be a name of 1 to 256 characters"):
            ServerConfig(alias=(name,))


@pytest.mark.parametrize("config", [HubConfig, EngineConfig, RegistryConfig, ServerConfig])
def test_every_field_is_a_setting(config: type[HubConfig | RegistryConfig | ServerConfig]) -> None:
    described = settings(config)
    fields = list(dataclasses.fields(config))
    for kind in [one.metadata["extensions"] for one in fields if one.name == "extensions"]:
        fields += [item for part in of_extensions(kind) for item in dataclasses.fields(part)]
    names = [item.name for item in fields if item.name not in ("sampling", "extensions")]
    assert sorted(one.name for one in described if one.kind != "PARAMETER") == sorted(names)
    for setting in described:
        assert setting.option == "--" + setting.name.replace("_", "-")
        assert setting.variable == "HEDDLE_" + setting.name.upper()
        assert setting.doc
        assert setting.group in GROUPS
        text = str(setting.default)
        # An empty list cannot be written, or `--api-key ""` opened doors.
        if setting.kind not in ("LIST", "PARAMETER"):
            assert resolve(config, {setting.name: text}, {}) == config()
        assert resolve(config, {}, {setting.variable: text}) == config()


def test_a_config_carries_settings_of_extensions() -> None:
    assert EngineConfig(extensions=(TorchSettings(),)) == EngineConfig(), "defaults are not kept"
    small = EngineConfig().having(TorchSettings(gpu_memory=0.5)).having(DrafterSettings(draft="a"))
    parts = (DrafterSettings(draft="a"), TorchSettings(gpu_memory=0.5))
    assert small == EngineConfig(extensions=parts) == EngineConfig(extensions=parts[::-1])
    assert small.having(TorchSettings()).extensions == parts[:1]
    changed = resolve(small, {"cuda_graphs": "off", "slots": "3"}, {})
    assert changed.of(TorchSettings) == TorchSettings(gpu_memory=0.5, cuda_graphs=False)
    assert (changed.of(DrafterSettings).draft, changed.slots) == ("a", 3)
    with pytest.raises(ConfigError, match="holds TorchSettings twice"):
        EngineConfig(extensions=(TorchSettings(), TorchSettings(gpu_memory=0.5)))
    with pytest.raises(ConfigError, match="of class EngineSettings, got OtelSettings"):
        EngineConfig(extensions=(OtelSettings(),))  # type: ignore[arg-type]


def test_requests_change_no_setting_that_names_a_place_or_that_models_share() -> None:
    fixed = {one.name for one in settings(EngineConfig) if one.is_fixed}
    assert fixed == {
        *("chat_template", "chat_template_kwargs", "device", "devices", "draft", "engram"),
        *("engram_alpha", "engram_unchecked", "hub_cache", "lora", "lora_memory", "lora_type"),
        *("mmproj", "offline", "prefix_cache_dir"),
    }


def test_sampling_parameters_have_defaults_as_settings() -> None:
    options = {"temperature": "0.5", "max_tokens": "-1", "samplers": "kpt"}
    environ = {"HEDDLE_TOP_K": "3", "HEDDLE_TEMPERATURE": "2", "HEDDLE_MAX_TOKENS": ""}
    stages = (Stage.TOP_K, Stage.TOP_P, Stage.TEMPERATURE)
    expected = {"temperature": 0.5, "max_tokens": -1, "samplers": stages, "top_k": 3}
    config = resolve(ServerConfig, options, environ)
    assert config.sampling == expected
    names = resolve(ServerConfig, {"samplers": "top_k, top_p,temperature"}, {}).sampling
    assert names == {"samplers": stages}
    assert resolve(ServerConfig, {"samplers": "top_k"}, {}).sampling == {"samplers": (Stage.TOP_K,)}
    assert resolve(config, {"min_p": "0.1"}, {}).sampling == expected | {"min_p": 0.1}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("temperature", "warm", "--temperature: 'warm' is not a number"),
        ("top_k", "1.5", "--top-k: '1.5' is not a number"),
        ("top_p", "3", "--top-p: top_p must be in"),
        ("samplers", "top_k,nothing", "--samplers: samplers must be made of"),
        ("samplers", "nothing", "--samplers: samplers must be made of the letters"),
    ],
)
def test_a_wrong_default_of_a_sampling_parameter_names_its_option(
    name: str, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(ServerConfig, {name: text}, {})
    assert refused.value.message.startswith(said)


def test_defaults_of_a_program_are_checked_like_texts() -> None:
    assert ServerConfig(sampling={"samplers": ["top_k"]}).sampling == {"samplers": (Stage.TOP_K,)}
    with pytest.raises(ConfigError, match=r"top_p must be in .* got 3"):
        ServerConfig(sampling={"top_p": 3})


@pytest.mark.parametrize("name", ["priority", "stop", "logprobs", "nothing"])
def test_other_fields_are_no_defaults(name: str) -> None:
    with pytest.raises(ConfigError, match=f"sampling has '{name}'"):
        ServerConfig(sampling={name: 1})


def test_keys_are_a_list_with_commas() -> None:
    assert resolve(ServerConfig, {}, {"HEDDLE_API_KEY": "one, two"}).api_key == ("one", "two")
    assert resolve(ServerConfig, {"api_key": "one"}, {"HEDDLE_API_KEY": "two"}).api_key == ("one",)


@pytest.mark.parametrize("text", ["", " ", "sk-one,", "sk-one,,two", "sk-one two", "sk-öne"])
def test_a_bad_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(ServerConfig, {"api_key": text}, {})
    assert refused.value.message.startswith("--api-key: api_key: key ")
    assert "sk" not in refused.value.message


def test_a_time_to_keep_models_needs_autoload() -> None:
    with pytest.raises(
        ConfigError, match=r"--keep-alive: keep_alive 60 .*set autoload \(--autoload\) too"
    ):
        resolve(RegistryConfig, {"keep_alive": "60"}, {})
    with pytest.raises(ConfigError, match="HEDDLE_KEEP_ALIVE: keep_alive 1 "):
        resolve(RegistryConfig, {"autoload": "off"}, {"HEDDLE_KEEP_ALIVE": "1"})
    both = resolve(RegistryConfig, {"keep_alive": "60", "autoload": "on"}, {})
    assert (both.keep_alive, both.autoload) == (60, True)
    with pytest.raises(ConfigError, match="keep_alive 60 unloads"):  # not what the options changed
        resolve(both, {"autoload": "off"}, {})


def test_scoping_by_key_needs_keys() -> None:
    with pytest.raises(ConfigError, match=r"HEDDLE_PREFIX_CACHE_PER_KEY: .* needs API keys"):
        resolve(ServerConfig, {}, {"HEDDLE_PREFIX_CACHE_PER_KEY": "on"})
    for keys in ({"api_key": "sk"}, {"api_key_file": "keys"}):
        assert resolve(ServerConfig, {"prefix_cache_per_key": "on"} | keys, {}).prefix_cache_per_key


@given(st.integers(0, 2**60))
def test_a_size_is_read_back_as_it_was_written(size: int) -> None:
    written = format_size(size)
    assert parse_size(written) == size or size > 2**53  # sizes are read as floats
    assert len(written) <= len(str(size))


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 << 20), ("2GiB", 2 << 30), ("1.5g", 3 << 29), ("7", 7), (" 1 kb ", 1024)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_counts() -> None:
    assert [counted(count, "model") for count in (0, 1, 2000)] == [
        "0 models",
        "1 model",
        "2,000 models",
    ]
    assert [counted(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]


@pytest.mark.parametrize("text", ["", "-1", "1X", "M", "nan", "9" * 400, "1e9"])
def test_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_size(text)


def test_debug() -> None:
    assert not debug_wanted({})
    assert not debug_wanted({"HEDDLE_DEBUG": "0"})
    assert debug_wanted({"HEDDLE_DEBUG": "1"})
