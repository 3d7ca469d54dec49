"""An answer to a picture has the same bits alone, in company, in any chunks and from any cache.

The model is the default one with small eyes of random weights. `whole` lets the tokens of a picture
see one another, as in Gemma 3.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from seeing_model import write_eyes, write_model

from heddle.config import EngineConfig
from heddle.disk import page_file
from heddle.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.errors import InvalidRequestError
from heddle.extensions.drafters.settings import DrafterSettings
from heddle.extensions.vision import sighting
from heddle.pictures import Illustrated, Picture
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS, PictureKeys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from heddle.outputs import Output

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("costless_guesses")]

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=2, ignore_eos=True)
GREEDY = replace(PARAMS, temperature=0, seed=None)


@pytest.fixture(scope="module")
def seeing(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    write_eyes(folder / "mmproj-eyes.gguf")
    return write_model(model_path, folder / "model.gguf")


@contextmanager
def engine_of(seeing: Path, *, whole: bool = False, **settings: Any) -> Iterator[Engine]:
    settings = {"slots": 8, "speculation": "off", "kv_cache": 1 << 27} | settings
    with Engine.load(seeing, EngineConfig(**settings)) as engine:
        assert engine.model.eyes is not None
        engine.model.eyes.whole = whole  # type: ignore[attr-defined]
        yield engine


def picture(seed: int, height: int = 90, width: int = 140) -> Picture:
    colours = np.random.default_rng(seed).integers(0, 256, (height // 10, width // 10, 3), np.uint8)
    return Picture.of(np.ascontiguousarray(colours.repeat(10, 0).repeat(10, 1)))


def prompt(*pictures: Picture, text: str = "What is this?") -> Illustrated:
    marks = " and ".join("<image>" for _ in pictures)
    return Illustrated(f"<|im_start|>user\nLook: {marks} {text}<|im_end|>\n", pictures)


ONE, OTHER = picture(1), picture(2)
PROMPTS = [
    prompt(ONE),
    prompt(OTHER),
    prompt(ONE, OTHER),
    prompt(ONE, ONE, text="Same?"),
    prompt(OTHER, text="What is it?"),
    prompt(ONE, text="a b a b a b a b a b a"),
]
Bits = tuple[object, ...]


def bits(output: Output) -> Bits:
    return output.text, output.tokens


def at_once(engine: Engine, prompts: Sequence[Illustrated | str], params: Any) -> list[Bits]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda one: bits(engine.complete(one, params)), prompts))


@pytest.fixture(scope="module", params=[False, True], ids=["causal", "whole"])
def case(request: pytest.FixtureRequest, seeing: Path) -> tuple[bool, list[Bits]]:
    """Whether pictures are whole, and the answers one after the other, without a prefix cache."""
    with engine_of(seeing, whole=request.param, slots=1, threads=1, prefix_cache=False) as engine:
        expected = [bits(engine.complete(one, PARAMS)) for one in PROMPTS]
    assert len({repr(one) for one in expected}) == len(expected), "pictures and texts matter"
    return request.param, expected


def test_in_company_and_from_the_cache(seeing: Path, case: tuple[bool, list[Bits]]) -> None:
    whole, expected = case
    with engine_of(seeing, whole=whole) as engine:
        streams = [engine.stream(f"Count: {n}, {n + 1},", replace(GREEDY, max_tokens=80))
                   for n in range(2)]  # fmt: skip
        for stream in streams:
            next(stream)
        assert at_once(engine, PROMPTS, PARAMS) == expected, "cold"
        assert at_once(engine, PROMPTS, PARAMS) == expected, "warm"
        stats = engine.prefix_cache_stats()
        assert stats is not None
        assert stats.hit_tokens > 6 * 64
        for stream in streams:
            stream.close()


@pytest.mark.parametrize("tokens", [5, 19])
def test_in_other_chunks(seeing: Path, case: tuple[bool, list[Bits]], tokens: int) -> None:
    """The tiles of a picture have four rows each here, so chunks begin and end within them."""
    whole, expected = case
    with engine_of(seeing, whole=whole, batch_tokens=tokens, prefix_cache=False) as engine:
        assert at_once(engine, PROMPTS, PARAMS) == expected


def test_after_preemption(seeing: Path, case: tuple[bool, list[Bits]]) -> None:
    whole, expected = case
    with engine_of(seeing, whole=whole, kv_cache=1 << 24) as engine:
        scheduler = engine.thread._loop.scheduler

        def preempt(loop: Any) -> int:
            running = [one for one in scheduler.slots if one is not None and not one.ended]
            if running:
                scheduler.admission.preempt(running[-1])
            return len(running)

        collectors = [Collector() for _ in PROMPTS]
        for one, collector in zip(PROMPTS, collectors, strict=True):
            engine.submit(one, PARAMS, collector)
        while engine.thread.call(preempt):
            pass
        assert [bits(one.wait()) for one in collectors] == expected
        assert engine.snapshot().preemptions > 0


def test_with_guesses(seeing: Path, case: tuple[bool, list[Bits]]) -> None:
    """Some of them are right, and one is wrong."""
    whole, expected = case
    with engine_of(seeing, whole=whole, prefix_cache=False) as engine:
        for one, (text, tokens) in zip(PROMPTS, expected, strict=True):
            guesses = [token.token for token in tokens]  # type: ignore[attr-defined]
            guesses[5] += 1
            collector = Collector()
            engine.submit_many([(one, PARAMS, collector)], known=[guesses])
            output = collector.wait()
            assert bits(output) == (text, tokens)
            assert output.usage.accepted_tokens > 0


def test_with_a_draft_model_that_sees_nothing(seeing: Path, case: tuple[bool, list[Bits]]) -> None:
    """It reads the token of a row as any other token; the model checks what it guesses."""
    whole, expected = case
    drafts = DrafterSettings(draft=str(seeing))
    settings = {"speculation": "auto", "prefix_cache": False, "extensions": (drafts,)}
    with engine_of(seeing, whole=whole, **settings) as engine:
        outputs = [engine.complete(one, PARAMS) for one in PROMPTS]
        assert [bits(one) for one in outputs] == expected
        assert at_once(engine, PROMPTS, PARAMS) == expected
    assert sum(one.usage.drafted_tokens for one in outputs) > 0


def test_a_picture_that_fits_no_step_is_refused(seeing: Path) -> None:
    with engine_of(seeing, whole=True, batch_tokens=3) as engine:
        with pytest.raises(InvalidRequestError, match="batch_tokens"):
            engine.complete(PROMPTS[0], PARAMS)
        engine.complete("Hello", replace(GREEDY, max_tokens=2))


def test_another_engine_goes_on(seeing: Path, case: tuple[bool, list[Bits]]) -> None:
    whole, expected = case
    left: list[Any] = []
    collectors = [Collector() for _ in PROMPTS]
    with engine_of(seeing, whole=whole) as first:
        for one, collector in zip(PROMPTS, collectors, strict=True):
            first.submit(one, PARAMS, collector)
        first.thread.leave(lambda one: not left.append(one))
        with engine_of(seeing, whole=whole) as second:
            # Its eyes have seen others: keys of the first engine must not be theirs.
            third = picture(3)
            alone = bits(second.complete(prompt(third), PARAMS))
            [interrupted] = left
            assert interrupted.fits(second.model)
            second.thread.go_on(interrupted, 3, lambda: next(second._ids), second.adapters)
            assert [bits(one.wait()) for one in collectors] == expected
            assert bits(second.complete(prompt(third), PARAMS)) == alone
            assert bits(second.complete(PROMPTS[0], PARAMS)) == expected[0]


def test_a_restarted_engine_finds_pictures_on_disk(
    seeing: Path,
    case: tuple[bool, list[Bits]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next process has other keys, and its eyes need not see what it finds."""
    whole, expected = case
    for others in (0, 3):
        keys = PictureKeys()
        for number in range(others):
            keys.key_of(bytes([number]))
        for module in (page_file, sighting):
            monkeypatch.setattr(module, "PICTURE_KEYS", keys)
        with engine_of(seeing, whole=whole, prefix_cache_dir=str(tmp_path / "pages")) as engine:
            output = engine.complete(PROMPTS[2], PARAMS)
            assert bits(output) == expected[2]
            cached = output.usage.cached_tokens
    assert cached >= output.usage.prompt_tokens - 2 * PAGE_TOKENS
