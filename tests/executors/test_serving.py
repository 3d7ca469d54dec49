"""Settings applied to a model's sizes, plans of memory, and plans out of range, on no device."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import EngineConfig
from heddle.errors import OutOfMemoryError
from heddle.executor import ModelShape
from heddle.executors.failures import non_finite, nothing_allowed
from heddle.executors.memory_plan import Room, plan_memory
from heddle.executors.plan_problems import plan_problems
from heddle.executors.serving import head_config, loaded_tensors, served_config, served_head
from heddle.state import KvShape, Pages, StateMemory, Window, WindowMemory
from heddle.step import HEAD_TOKENS, HEAD_TOKENS_OF_SLOT, Chunk, PageCopy, StepPlan, WindowPages

if TYPE_CHECKING:
    from collections.abc import Iterable

SHAPE = ModelShape(layers=1, kv_heads=1, head_dim=32, vocabulary=100, context=4096, width=32)
ENCODER = replace(SHAPE, causal=False)
CONFIG = EngineConfig(slots=2, batch_tokens=512, context=4096)
PAGES = Pages(KvShape(1, 32))


def test_an_encoder_computes_whole_texts_and_keeps_no_prefixes() -> None:
    config = replace(CONFIG, prefix_cache_dir="kept")
    assert served_config(config, SHAPE) is config
    served = served_config(config, ENCODER)
    assert (served.batch_tokens, served.prefix_cache, served.prefix_cache_dir) == (4096, False, "")


HEAD: Any = SimpleNamespace(name="layers.1", state=lambda layer: (PAGES,))
MODEL: Any = SimpleNamespace(head=HEAD)


@pytest.mark.parametrize(
    ("config", "kinds", "is_served"),
    [
        (CONFIG, [[PAGES]], True),
        (replace(CONFIG, speculation="off"), [[PAGES]], False),
        (CONFIG, [[Window(64, PAGES.shape)]], False),
        (CONFIG, [[Pages(KvShape(2, 32))], [PAGES]], False),
    ],
)
def test_a_head_is_served_if_it_guesses_and_shares_pages(
    config: EngineConfig, kinds: list, is_served: bool
) -> None:
    assert served_head(MODEL, kinds, config) == (HEAD if is_served else None)


def test_tensors_of_a_head_that_is_not_served_are_not_read() -> None:
    checkpoint: Any = SimpleNamespace(tensors={"layers.0.a": 1, "layers.1.a": 2, "layers.10.a": 3})
    assert loaded_tensors(checkpoint, MODEL, HEAD) == [1, 2, 3]
    assert loaded_tensors(checkpoint, MODEL, None) == [1, 3]


@pytest.mark.parametrize(
    ("slots", "batch_tokens", "tokens"),
    [(2, 512, HEAD_TOKENS), (64, 512, 64 * HEAD_TOKENS_OF_SLOT), (64, 100, 100)],
)
def test_a_step_of_a_head_has_few_tokens(slots: int, batch_tokens: int, tokens: int) -> None:
    config = replace(CONFIG, slots=slots, batch_tokens=batch_tokens)
    assert head_config(config).batch_tokens == tokens


# --- memory ---------------------------------------------------------------------------------------


def planned(free: int, keep: int = 0, **settings: int) -> int:
    """Pages of 1,000 bytes for a model of 100,000 bytes."""
    config = replace(CONFIG, slots=64, **settings)
    room = Room({"the machine": free}, 0.5, keep)
    return plan_memory(config, SHAPE, [[PAGES]], 100_000, lambda *_: 1000, room).pages


def test_the_kv_cache_is_the_least_of_what_the_limits_leave() -> None:
    assert planned(1_100_000) == 500, "half of what the model leaves"
    assert planned(1_100_000, keep=700_000) == 300, "what must stay free does"
    assert planned(1_100_000, model_memory=300_000) == 200, "model_memory bounds it"
    assert planned(1_100_000, model_memory=300_000, kv_cache=150_000) == 150


def test_a_model_that_could_hardly_be_used_is_refused() -> None:
    """The least are 2,048 tokens in 64 pages."""
    assert planned(1_100_000, model_memory=164_000) == 64
    with pytest.raises(OutOfMemoryError, match="unload another model"):
        planned(1_100_000, model_memory=163_000)


# --- plans out of range ---------------------------------------------------------------------------

MEMORY = StateMemory(8, windows=(WindowMemory(40, 4),))


def chunk(start: int, tokens: Iterable[int], first: int = 0, **more: Any) -> Chunk:
    pages = list(range((start + len([*tokens]) + 31) // 32))
    windows = [WindowPages(first, [0] * (len(pages) - first))]
    return replace(Chunk(0, start, [*tokens], pages, sample=True, windows=windows), **more)


@pytest.mark.parametrize(
    ("plan", "problems"),
    [
        (StepPlan((), (chunk(0, [1, 99]),)), []),
        (StepPlan((), ()), ["bad token count"]),
        (StepPlan((), (chunk(0, range(65)),)), ["bad token count"]),
        (StepPlan((), (chunk(0, [100]),)), ["bad token"]),
        (StepPlan((), (chunk(0, [-1]),)), ["bad token"]),
        (StepPlan((), (chunk(-1, [1]),)), ["bad span"]),
        (StepPlan((), (chunk(80, [1], first=1),)), []),
        (StepPlan((), (chunk(80, [1], first=2),)), ["bad page"]),
        (StepPlan((), (chunk(0, [1], pages=[8]),)), ["bad page"]),
        (StepPlan((), (chunk(0, [1], windows=[WindowPages(0, [4])]),)), ["bad page"]),
        (StepPlan((), (chunk(0, [1], windows=[]),)), ["bad page"]),
        (StepPlan((), (chunk(0, [1]),), (PageCopy(1, 2),)), []),
        (StepPlan((), (chunk(0, [1]),), (PageCopy(1, 1),)), ["bad copy of page 1 to page 1"]),
        (StepPlan((), (chunk(0, [1]),), (PageCopy(1, 4, 0),)), ["bad copy of page 1 to page 4"]),
        (StepPlan((), (chunk(0, [1]),), (PageCopy(1, 2, 1),)), ["bad copy of page 1 to page 2"]),
    ],
)
def test_what_is_out_of_range_in_a_plan(plan: StepPlan, problems: list[str]) -> None:
    assert [*plan_problems(plan, SHAPE, MEMORY, 64, reads_states=False)] == problems


def test_an_encoder_computes_no_part_of_a_text() -> None:
    plan = StepPlan((), (chunk(3, [1]),))
    assert [*plan_problems(plan, SHAPE, MEMORY, 64, reads_states=False)] == []
    assert [*plan_problems(plan, ENCODER, MEMORY, 64, reads_states=False)] == ["bad span"]


def test_errors_say_after_how_many_tokens_the_sequence_ended() -> None:
    """Guesses count if they were right."""
    guessing = chunk(10, [1, 2, 3, 4], guesses=3)
    assert "after 11 tokens" in non_finite(guessing).message
    assert "after 13 tokens" in non_finite(guessing, 2).message
    assert "after 13 tokens" in nothing_allowed(guessing, 2).message
