"""A rank finds no memory for a step: all ranks drop it, and requests go on in smaller steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from devices import load_on
from heddle.errors import EngineFailedError
from heddle.sampling_params import SamplingParams
from models import rig
from models.tiny import llama, qwen3_5

torch = pytest.importorskip("torch")
import shortage  # noqa: E402
from shortage import Shortage  # noqa: E402

from heddle.extensions.torch.agreement import Agreement, Exchanges  # noqa: E402
from heddle.extensions.torch.together import Together  # noqa: E402
from prepared_children import prepare_children  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base import TinyModel

pytestmark = pytest.mark.usefixtures("processes")

PROMPTS = [rig.TEXT[:70], rig.TEXT[3:12], rig.TEXT[5:45]]
PARAMS = SamplingParams(temperature=0.8, max_tokens=6, logprobs=2, ignore_eos=True)
SETTINGS: dict[str, Any] = {"slots": 3, "batch_tokens": 64, "rank_timeout": 20}
PROMPT, DECODE = range(17, 65), range(1, 17)
"""Rows of products in steps with prompts, and in steps without (and of logits in both)."""

SHORTAGES = [
    ("prepare", range(1), 0),
    ("prepare", range(1), 4),  # in a decode step
    ("multiply", PROMPT, 0),
    ("multiply", PROMPT, 5),
    ("multiply", DECODE, 20),
    ("multiply", DECODE, 39),
    ("gather", PROMPT, 2),
    ("gather", DECODE, 9),
    ("keep", range(1), 3),
]


@pytest.fixture
def shortages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Shortage]:
    """Shortages of memory, of rank 0 and of rank 1."""
    own, other = tmp_path / "own", tmp_path / "other"
    prepare_children(monkeypatch, shortage)
    monkeypatch.setenv("HEDDLE_TEST_SHORTAGE", str(other))
    Shortage(own).install(monkeypatch.setattr)
    return [Shortage(own), Shortage(other)]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "model",
    [llama.PLAIN, pytest.param(qwen3_5.MODELS[0], marks=pytest.mark.torch_slow)],
    ids=str,
)
def test_a_rank_without_memory_changes_no_answer(
    model: TinyModel,
    ahead: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shortages: list[Shortage],
) -> None:
    """Wherever rank 0 or rank 1 fails in a step, all requests have the bits that they had."""
    found: list[Any] = []

    def load(name: str, checkpoint: Any, config: Any) -> Any:
        found.append(load_on("torch, sampling", checkpoint, config))
        return found[-1]

    monkeypatch.setattr(rig, "load_on", load)
    checkpoint = replace(model, context=rig.CONTEXT).checkpoint(tmp_path)
    first = rig.Rig(checkpoint, tensor_parallel=2, threads=1, kv_cache=2 << 20, **SETTINGS)
    executor = found[0]
    executor.runs_ahead = executor._leader.runs_ahead = ahead
    expected = first.run(PROMPTS, PARAMS)
    monkeypatch.setattr(rig, "load_on", lambda *_: executor)
    for place, rows, calls in SHORTAGES:
        for one in shortages:
            again = rig.Rig(checkpoint, **SETTINGS)  # a new scheduler, with an empty cache
            one.order(place, rows, calls)
            assert again.run(PROMPTS, PARAMS) == expected, (place, rows, calls)
            assert one.is_over, (place, rows, calls)
            assert again.scheduler.admission.preemptions, (place, rows, calls)
            assert (again.steps_ahead > 0) == ahead
    assert not executor._group.problem()
    executor.close()


class Alone:
    """A collective of one rank, with no memory for large values."""

    def __init__(self) -> None:
        self.given: list[tuple[int, ...]] = []

    def gather(self, x: Any) -> list[Any]:
        if len(x) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.given.append(tuple(x.shape))
        return [x]


def test_a_rank_that_fails_gives_zeros_to_all_that_is_left() -> None:
    collective, device = Alone(), torch.device("cpu")
    exchanges = Exchanges(collective, device, [((16, n), torch.float32) for n in (1, 2, 3)])

    def work() -> None:
        exchanges.gather(torch.ones(16, 1))
        raise torch.OutOfMemoryError("CUDA out of memory")

    attempt = Agreement(collective, device).attempt(exchanges, work)
    assert collective.given == [(16, 1), (16, 2), (16, 3), (1,)]
    assert (attempt.found, attempt.lacking) == (None, [0])


def test_a_rank_that_fails_repeats_a_recording_if_it_has_not() -> None:
    replays: list[str] = []
    for name in ("not yet", "done"):
        exchanges = Exchanges(Alone(), torch.device("cpu"), [], partial(replays.append, name))
        if name == "done":
            exchanges.note_replay()
        exchanges.take_part()
        exchanges.take_part()
    assert replays == ["not yet"]


class Beside(Alone):
    """A collective of two ranks, the other of which fails."""

    def gather(self, x: Any) -> list[Any]:
        return [*super().gather(x), torch.ones_like(x)]


@pytest.mark.parametrize("part", ["compute", "prepare", "record"])
def test_all_ranks_end_a_warm_up_if_one_fails(part: str) -> None:
    """In a recording, a rank exchanges nothing but whether it failed."""

    def expected(tokens: int, rows: int) -> Any:
        return iter([((rows, 3), torch.float32)])

    def error_of(collective: Alone, work: Any) -> str:
        together = Together(collective, recorded, torch.device("cpu"), expected, used.append)
        with pytest.raises(RuntimeError) as error:
            getattr(together, part)(2, 2, work)
        return str(error.value)

    def refuse() -> None:
        raise torch.OutOfMemoryError("refused")

    recorded, used = Alone(), []
    own, beside = Alone(), Beside()
    assert error_of(own, refuse) == "refused"
    assert own.given == ([(2, 3), (1,)] if part == "compute" else [(1,)])
    assert recorded.given == ([(2, 3)] if part == "prepare" else [])
    assert error_of(beside, lambda: used[-1].gather(torch.ones(2, 3))) == "rank 1 failed"


def test_a_rank_without_memory_for_the_exchanges_fails_the_model() -> None:
    collective, device = Alone(), torch.device("cpu")
    exchanges = Exchanges(collective, device, [((17, 1), torch.float32)])
    agreement, x = Agreement(collective, device), torch.ones(17, 1)
    with pytest.raises(EngineFailedError, match="no memory for what its rank exchanges"):
        agreement.attempt(exchanges, lambda: exchanges.gather(x))


def test_other_failures_are_passed_on() -> None:
    collective, device = Alone(), torch.device("cpu")

    def work() -> None:
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        Agreement(collective, device).attempt(Exchanges(collective, device, []), work)
    assert not collective.given
