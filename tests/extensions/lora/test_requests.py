"""Requests with adapters: exact in any company, apart in the cache, kept as long as they run."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.embedding import EmbeddingParams
from heddle.engine import Engine
from heddle.engine.adapters import _NoAdapters
from heddle.engine.llm import LLM
from heddle.engine.streaming.blocking import Collector
from heddle.engine.streaming.streams import Backlog
from heddle.errors import (
    AdapterNotFoundError,
    ConfigError,
    InvalidRequestError,
    ModelSourceError,
    UnsupportedModelError,
    UnsupportedParameterError,
)
from heddle.extensions.lora.parameters import AdapterChoice, LoraParams
from heddle.extensions.lora.settings import LoraSettings
from heddle.hosting.registry import Registry
from heddle.outputs import Output
from heddle.sampling_params import SamplingParams
from heddle.server.generate.service import Served
from heddle.server.generate.vectors import vectors
from lora_writer import changes_of, peft_tensors, write_peft
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from heddle.engine.streaming.blocking import Stream
    from heddle.extensions.lora.library import AdapterLibrary, ModelAdapters
    from heddle.outputs import Delta

PROMPT = [(7 * i * i + 3 * i) % 31 + 1 for i in range(40)]
PARAMS = SamplingParams(max_tokens=12, seed=3, logprobs=2, ignore_eos=True)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The model's folder, and those of two adapters."""
    found = {"model": PLAIN.write_folder(tmp_path / "model")}
    for seed, name in enumerate(("one", "two")):
        found[name] = write_peft(tmp_path / name, peft_tensors(changes_of(PLAIN, seed=seed)))
    return found


def config_of(files: dict[str, Path], **settings: Any) -> EngineConfig:
    named = tuple(f"{name}={path}" for name, path in files.items() if name != "model")
    return EngineConfig(
        slots=8, threads=2, kv_cache=1 << 22, extensions=(LoraSettings(lora=named, **settings),)
    )


@pytest.fixture
def engine(files: dict[str, Path]) -> Iterator[Engine]:
    with Engine.load(files["model"], config_of(files)) as engine:
        yield engine


def asking(*choices: str | tuple[str, float], **changes: Any) -> SamplingParams:
    named = tuple(AdapterChoice(*(one if isinstance(one, tuple) else (one,))) for one in choices)
    return replace(PARAMS, **changes).having(LoraParams(lora=named))


def bits(output: Output) -> tuple[Any, ...]:
    return output.tokens


def rest(first: Delta, stream: Stream) -> tuple[Any, ...]:
    """The tokens of a stream whose first delta was read."""
    return bits(Output.of([first, *stream]))


MIXED = (
    PARAMS,
    asking("one"),
    asking("two"),
    asking(("one", 0.5)),
    asking("one", ("two", -1.0)),
    asking("two", temperature=0),
    asking("one", max_tokens=3),
    PARAMS,
)


def test_company_and_cache_change_no_bit(files: dict[str, Path], engine: Engine) -> None:
    alone = []
    for params in MIXED:
        engine.flush_prefix_cache()
        alone.append(bits(engine.complete(PROMPT, params)))
    assert len(set(alone)) == len(MIXED) - 1, "all but the two without adapters differ"
    for _ in range(2):  # the second time, prefixes are cached
        streams = [engine.stream(PROMPT, params) for params in MIXED]
        assert [bits(Output.of(list(stream))) for stream in streams] == alone


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_have_adapters(engine: Engine, pooling: str) -> None:
    kinds = [EmbeddingParams(pooling).having(params) for params in CHOICES]  # type: ignore[arg-type]
    alone = []
    for params in kinds:
        engine.flush_prefix_cache()
        alone.append(engine.embed(PROMPT, params).vector.tobytes())
    assert len(set(alone)) == len(kinds)
    for _ in range(2):  # the second time, prefixes are cached
        assert together(engine, kinds) == alone


def test_the_texts_of_one_body_have_one_adapter(files: dict[str, Path], engine: Engine) -> None:
    backlog = Backlog(1 << 20)
    served = Served("one", engine, ServerConfig(), backlog, adapter="one")
    prompts = [PROMPT] * 100  # more than are in the engine at once

    async def read() -> int:
        async with aclosing(vectors(prompts, EmbeddingParams(), served, {})) as ready:
            await anext(ready)
            engine.load_adapter("one", files["two"])
            return len([one async for one in ready])

    with pytest.raises(InvalidRequestError, match="send the request again"):
        asyncio.run(read())
    assert asyncio.run(read()) == len(prompts) - 1, "its contents are equal"


CHOICES = [
    LoraParams(),
    LoraParams(lora="one"),  # type: ignore[arg-type]
    LoraParams(lora="two"),  # type: ignore[arg-type]
    LoraParams(lora=(AdapterChoice("one", 0.5), AdapterChoice("two"))),
]


def together(engine: Engine, kinds: list[EmbeddingParams]) -> list[bytes]:
    collectors = [Collector() for _ in kinds]
    requests = zip(kinds, collectors, strict=True)
    engine.submit_many([(PROMPT, params, collector) for params, collector in requests])
    return [one.wait_embedding().vector.tobytes() for one in collectors]


def cached(engine: Engine, params: SamplingParams) -> int:
    return engine.complete(PROMPT, params).usage.cached_tokens


def test_prefixes_are_shared_by_equal_contents_only(files: dict[str, Path], engine: Engine) -> None:
    library: AdapterLibrary = engine.adapters.library  # type: ignore[assignment]
    library.add("again", str(files["one"]))
    assert cached(engine, PARAMS) == 0
    assert cached(engine, asking("one")) == 0
    assert cached(engine, asking(("one", 0.5))) == 0
    assert cached(engine, asking("two")) == 0
    assert cached(engine, asking("again")) == len(PROMPT) - 1
    assert cached(engine, PARAMS) == len(PROMPT) - 1
    write_peft(files["one"], peft_tensors(changes_of(PLAIN, seed=9)))
    adapters: ModelAdapters = engine.adapters  # type: ignore[assignment]
    adapters.replace("one", str(files["one"]))
    assert cached(engine, asking("one")) == 0, "its contents are new"


def test_replaced_contents_leave_the_memory(files: dict[str, Path], engine: Engine) -> None:
    adapters: ModelAdapters = engine.adapters  # type: ignore[assignment]
    engine.complete(PROMPT, asking("one"))
    write_peft(files["one"], peft_tensors(changes_of(PLAIN, seed=9)))
    adapters.library.add("again", str(files["one"]))
    replaced = adapters.replace("one", str(files["one"]))
    assert adapters.loaded == (replaced,)
    engine.complete(PROMPT, asking("again"))
    adapters.forget("one")
    assert adapters.loaded == (replaced,), "another has the same contents"


def test_those_used_least_recently_are_put_out(files: dict[str, Path]) -> None:
    with Engine.load(files["model"], config_of(files)) as engine:
        adapters: ModelAdapters = engine.adapters  # type: ignore[assignment]
        expected = [bits(engine.complete(PROMPT, asking(name))) for name in ("one", "two")]
        size = adapters.loaded[0].bytes
    with Engine.load(files["model"], config_of(files, lora_memory=size + 100)) as engine:
        adapters = engine.adapters  # type: ignore[assignment]
        for _ in range(2):
            for name, text in zip(("one", "two"), expected, strict=True):
                assert bits(engine.complete(PROMPT, asking(name))) == text
                assert len(adapters.loaded) == 1
    with (
        Engine.load(files["model"], config_of(files, lora_memory=size - 1)) as engine,
        pytest.raises(InvalidRequestError, match="lora_memory"),
    ):
        engine.complete(PROMPT, asking("one"))


def test_a_running_request_keeps_its_adapter(files: dict[str, Path], engine: Engine) -> None:
    expected = bits(engine.complete(PROMPT, asking("one", max_tokens=200)))
    adapters: ModelAdapters = engine.adapters  # type: ignore[assignment]
    stream = engine.stream(PROMPT, asking("one", max_tokens=200))
    first = next(stream)
    adapters.library.remove("one")
    adapters.forget("one")
    assert adapters.loaded == ()
    assert rest(first, stream) == expected
    with pytest.raises(InvalidRequestError, match="no adapter is named 'one'; there is two"):
        engine.complete(PROMPT, asking("one"))
    with pytest.raises(AdapterNotFoundError):
        adapters.library.remove("one")


def test_requests_go_on_with_their_adapters_after_a_reload(files: dict[str, Path]) -> None:
    config = config_of(files)
    with Registry(RegistryConfig(), config) as registry:
        registry.load(files["model"], name="m")
        prompts = [asking("one", max_tokens=300), replace(PARAMS, max_tokens=300)]
        engine = registry.engine("m")
        expected = [bits(engine.complete(PROMPT, params)) for params in prompts]
        streams = [engine.stream(PROMPT, params) for params in prompts]
        firsts = list(map(next, streams))
        registry.reload("m", replace(config, slots=4))
        assert list(map(rest, firsts, streams)) == expected


def test_a_server_loads_its_adapters_at_the_start(files: dict[str, Path], tmp_path: Path) -> None:
    with Registry(RegistryConfig(), config_of(files)) as registry:
        registry.check_libraries()  # no model is loaded
        adapters: ModelAdapters = registry.load(files["model"], name="m").adapters  # type: ignore[assignment]
        assert adapters.loaded == ()
        adapters.library.add("other", str(tmp_path / "gone"), "another model")
        registry.check_libraries()
        assert len(adapters.loaded) == 2
        adapters.library.add("wrong", str(tmp_path / "gone"))
        with pytest.raises(ConfigError, match=r"--lora wrong=.*gone.*does not exist"):
            registry.check_libraries()


def test_programs_load_and_name_adapters(files: dict[str, Path]) -> None:
    (files["model"] / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with LLM(str(files["model"]), EngineConfig(slots=8, threads=2, kv_cache=1 << 22)) as llm:
        llm.engine.load_adapter("one", files["one"])
        llm.engine.load_adapter("two", str(files["two"]))

        def text(**asked: Any) -> tuple[Any, ...]:
            return bits(llm.generate([PROMPT], PARAMS, **asked)[0])

        assert text(lora="one") == bits(llm.engine.complete(PROMPT, asking("one")))
        mixed = ["two", {"name": "one", "scale": 0.5}]
        expected = bits(llm.engine.complete(PROMPT, asking("two", ("one", 0.5))))
        assert text(lora=mixed) == expected != text() == text(lora=[])
        assert bits(llm.generate([PROMPT], asking("one"), lora="two")[0]) == text(lora="two")
        asks = [{"role": "user", "content": "ABC"}]
        assert bits(llm.chat(asks, PARAMS, lora="one")) != bits(llm.chat(asks, PARAMS))
        assert (llm.embed([PROMPT], lora="one") != llm.embed([PROMPT])).any()
        llm.engine.load_adapter("one", files["two"])
        assert text(lora="one") == text(lora="two")
        llm.engine.unload_adapter("one")
        with pytest.raises(InvalidRequestError, match="there is two"):
            text(lora="one")
        with pytest.raises(AdapterNotFoundError):
            llm.engine.unload_adapter("one")
        assert len(llm.engine.adapters.loaded) == 1  # type: ignore[attr-defined]


def test_without_an_extension_there_are_no_adapters() -> None:
    none: Any = _NoAdapters()
    with pytest.raises(UnsupportedParameterError, match="no installed extension"):
        none.replace("one", "path")
    with pytest.raises(AdapterNotFoundError, match="'one'"):
        none.remove("one")


def test_what_cannot_be_named_is_refused(files: dict[str, Path], engine: Engine) -> None:
    for wrong, said in (
        ("one", "NAME=PATH"),
        ("a b=x", "name of an adapter"),
    ):
        settings = LoraSettings(lora=(wrong,))
        with pytest.raises(ConfigError, match=said):
            Engine.load(files["model"], EngineConfig(extensions=(settings,)))
    with pytest.raises(InvalidRequestError, match="there is one, two"):
        engine.complete(PROMPT, asking("three"))
    for value in (["one", "one"], [{"name": "one", "id": 1}], [{"scale": 1}], "", 7, [""]):
        with pytest.raises(InvalidRequestError, match="lora must be"):
            LoraParams(lora=value)  # type: ignore[arg-type]


def test_a_device_without_adapters_says_so(files: dict[str, Path]) -> None:
    with (
        Engine.load(files["model"], config_of(files)) as engine,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("heddle.extensions.lora.library.AdaptingExecutor", int)
        with pytest.raises(UnsupportedModelError, match="adapters are not supported"):
            engine.complete(PROMPT, asking("one"))


def test_files_that_are_gone_are_named(files: dict[str, Path], engine: Engine) -> None:
    (files["one"] / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelSourceError, match="one"):
        engine.complete(PROMPT, asking("one"))


def test_a_closed_engine_frees_its_adapters(files: dict[str, Path], engine: Engine) -> None:
    engine.complete(PROMPT, asking("one"))
    adapters: ModelAdapters = engine.adapters  # type: ignore[assignment]
    assert len(adapters.loaded) == 1
    engine.close()
    assert adapters.loaded == ()


def test_adapters_of_integers_take_half_the_memory(files: dict[str, Path]) -> None:
    found = []
    for kind in ("stored", "int8"):
        with Engine.load(files["model"], config_of(files, lora_type=kind)) as engine:
            output = engine.complete(PROMPT, asking("one"))
            adapters: ModelAdapters = engine.adapters  # type: ignore[assignment]
            found.append((bits(output), adapters.loaded[0]))
    (exact, stored), (near, rounded) = found
    assert exact != near
    assert rounded.bytes < 0.6 * stored.bytes
    assert rounded.digest != stored.digest, "their prefixes are kept apart"
