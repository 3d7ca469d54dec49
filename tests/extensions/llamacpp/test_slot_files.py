"""Prefixes of slots in files: saved, brought back, and refused."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from cache_integrity import check_cache
from fake_executor import FakeExecutor, solo_output
from fake_loads import burn
from fake_model import FakeTokenizer, fake_model
from heddle.cache.disk_pages import DiskPages
from heddle.config import EngineConfig
from heddle.disk.directory import write_all
from heddle.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.errors import (
    ConfigError,
    EngineClosedError,
    EngineFailedError,
    InvalidRequestError,
    ModelPoisonedError,
    SlotFileError,
)
from heddle.extensions.llamacpp import slot_file
from heddle.extensions.llamacpp.slot_files import (
    erase_slot,
    restore_slot,
    save_slot,
    slot_directory,
    slot_path,
)
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS, WindowMemory
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from heddle.disk.tier import DiskTier
    from heddle.outputs import Output

    Start = Callable[..., Engine]

PROMPT = "the sea is blue and the sky is as well and so are the hills in the evening"
SAVED = len(PROMPT) + 3
"""Tokens of a prompt and of its four tokens of output; nobody computed the last one."""
PAGES = SAVED // PAGE_TOKENS


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(seed=1, ignore_eos=True, **({"max_tokens": 4} | fields))


def right(output: Output, prompt: str = PROMPT) -> bool:
    said = solo_output(FakeTokenizer().encode(prompt), params(), 512)
    return [token.token for token in output.tokens] == said


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts engines of one model, and closes them after the test."""
    monkeypatch.setattr("heddle.disk.tier.PATIENCE", PATIENCE)
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"weights")
    engines = []

    def starter(executor: FakeExecutor | None = None, **settings: Any) -> Engine:
        model = fake_model(executor or FakeExecutor(), path=weights)
        engines.append(Engine(model, EngineConfig(**settings)))
        return engines[-1]

    yield starter
    for engine in engines:
        engine.model.executor.gate.set()  # type: ignore[attr-defined]
        engine.close()


@pytest.fixture
def file(start: Start, tmp_path: Path) -> Path:
    """The saved prefix of a prompt."""
    with start() as engine:
        assert right(engine.complete(PROMPT, params()))
        saved = save_slot(engine, 0, tmp_path / "slot")
    assert saved == (SAVED, (tmp_path / "slot").stat().st_size)
    return tmp_path / "slot"


def found(engine: Engine) -> int:
    """How many tokens of the prompt a right request finds."""
    output = engine.complete(PROMPT, params())
    assert right(output)
    return output.usage.cached_tokens


def damaged(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def test_another_process_restores_the_prefix(start: Start, file: Path) -> None:
    with start() as engine:
        assert restore_slot(engine, 3, file) == (SAVED, file.stat().st_size)
        assert engine.snapshot().computed_prompt_tokens == SAVED - PAGES * PAGE_TOKENS
        assert found(engine) == len(PROMPT) - 1
        assert save_slot(engine, 3, file)[0] == SAVED, "the slot has the prefix now"
        check_cache(engine.thread._loop.cache)


def test_a_file_brings_only_what_the_cache_lacks(start: Start, file: Path) -> None:
    with start() as engine:
        engine.complete(PROMPT[: PAGE_TOKENS + 8], params())
        restore_slot(engine, 0, file)
        assert found(engine) == len(PROMPT) - 1


def test_the_file_of_a_restore_is_not_used_later(start: Start, file: Path) -> None:
    with start() as engine:
        restore_slot(engine, 0, file)
        assert not engine.thread._loop.cache.disk._tiers
        engine.flush_prefix_cache()
        assert file.exists()
        assert found(engine) == 0


def test_a_flush_during_a_restore_drops_the_pages_of_the_file(
    start: Start, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lend = DiskPages.lend

    def lend_and_flush(self: DiskPages, tier: DiskTier) -> None:
        lend(self, tier)
        engine.thread._loop.cache.flush()

    monkeypatch.setattr(DiskPages, "lend", lend_and_flush)
    with start() as engine:
        assert restore_slot(engine, 0, file)[0] == SAVED
        assert engine.snapshot().computed_prompt_tokens == SAVED
    assert file.exists()


def test_a_recurrent_model_continues_from_a_snapshot(start: Start, tmp_path: Path) -> None:
    executors = [FakeExecutor(snapshots=8, snapshot_tokens=PAGE_TOKENS) for _ in range(2)]
    file = tmp_path / "slot"
    with start(executors[0]) as engine:
        engine.complete(PROMPT, params())
        # The states at the page's end and at the end of the prompt are kept, none of the output.
        assert save_slot(engine, 0, file)[0] == len(PROMPT)
    with start(executors[1]) as engine:
        assert restore_slot(engine, 0, file)[0] == len(PROMPT)
        assert engine.snapshot().computed_prompt_tokens == len(PROMPT) - 2 * PAGE_TOKENS
        assert right(engine.complete(PROMPT, params()))
        check_cache(engine.thread._loop.cache)


def test_pages_whose_windows_are_gone_are_computed(start: Start, tmp_path: Path) -> None:
    def executor() -> FakeExecutor:
        return FakeExecutor(windows=(WindowMemory(PAGE_TOKENS, 5, 200, 3),))

    file = tmp_path / "slot"
    with start(executor(), batch_tokens=16) as engine:
        engine.complete(PROMPT, params())
        assert save_slot(engine, 0, file)[0] == SAVED
        engine.complete(PROMPT[::-1], params(id_slot=1))  # takes the first page of the window
        assert save_slot(engine, 0, tmp_path / "less")[0] == SAVED
    for each, computed in ((file, SAVED - PAGES * PAGE_TOKENS), (tmp_path / "less", SAVED)):
        with start(executor(), batch_tokens=16) as engine:
            assert restore_slot(engine, 0, each)[0] == SAVED
            assert engine.snapshot().computed_prompt_tokens == computed
            assert found(engine) == len(PROMPT) - 1
            check_cache(engine.thread._loop.cache)


LONG = PROMPT * 4


@pytest.mark.parametrize("flushed", [False, True])
def test_pages_that_leave_the_cache_meanwhile_are_computed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flushed: bool
) -> None:
    """The engine copies four pages between two steps."""
    copied, copy = [], DiskPages.copy

    def copy_and_flush(self: DiskPages, *arguments: Any) -> int:
        copied.append(copy(self, *arguments))
        if flushed:
            engine.thread._loop.cache.flush()
        return copied[-1]

    monkeypatch.setattr(DiskPages, "copy", copy_and_flush)
    with start() as engine:
        engine.complete(LONG, params())
        saved, _ = save_slot(engine, 0, tmp_path / "slot")
    assert (saved, copied) == (len(LONG) + 3, [4, 0] if flushed else [4, 4, 1])
    with start() as engine:
        assert restore_slot(engine, 0, tmp_path / "slot")[0] == saved
        assert engine.snapshot().computed_prompt_tokens == saved - sum(copied) * PAGE_TOKENS
        assert right(engine.complete(LONG, params()), LONG)


def test_a_slot_without_a_prefix(start: Start, tmp_path: Path) -> None:
    with start() as engine:
        assert save_slot(engine, 7, tmp_path / "slot")[0] == 0
        assert restore_slot(engine, 0, tmp_path / "slot")[0] == 0
        assert erase_slot(engine, 7) == 0


def test_a_request_gets_the_slot_that_it_asks_for(start: Start, tmp_path: Path) -> None:
    """If another request has the slot, it gets another one."""
    executor = FakeExecutor()
    engine = start(executor, slots=4)
    executor.gate.clear()
    collectors = [Collector() for _ in range(4)]
    for wanted, collector in zip((2, 2, -1, 9), collectors, strict=True):
        engine.submit(PROMPT, params(id_slot=wanted), collector)
    executor.gate.set()
    for collector in collectors:
        collector.wait()
    assert {slot for plan in executor.plans for slot, _, _ in plan} == {0, 1, 2, 3}
    engine.complete("in the third", params(id_slot=2))
    assert save_slot(engine, 2, tmp_path / "slot")[0] == len("in the third") + 3


def test_an_erased_prefix_is_computed_again(start: Start) -> None:
    with start() as engine:
        engine.complete(PROMPT, params())
        assert erase_slot(engine, 0) == SAVED
        assert erase_slot(engine, 0) == 0
        assert found(engine) == 0


def test_a_prefix_that_another_continues_is_not_erased(start: Start) -> None:
    with start() as engine:
        shared = engine.complete(PROMPT, params(id_slot=0))
        turn = [*FakeTokenizer().encode(PROMPT), *(one.token for one in shared.tokens), 5]
        engine.complete(turn, params(id_slot=1))
        assert erase_slot(engine, 0) == 0
        assert found(engine) == len(PROMPT) - 1


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_call_waits_for_no_more_than_the_steps_in_flight(start: Start, runs_ahead: bool) -> None:
    """A running sequence has the tokens that steps have computed, and loses none of them."""
    executor = FakeExecutor(runs_ahead=runs_ahead)
    engine = start(executor, speculation="off")
    loop, futures = engine.thread._loop, []

    def act() -> tuple[int, int, int]:
        assert not executor.submitted
        tokens, _ = loop.scheduler.prefixes.latest(0, None)
        return executor.steps, len(tokens), loop.scheduler.prefixes.erase(0, None)

    def before_step(step: int) -> None:
        if step == 2:
            futures.append(loop.calls.add(act))

    executor.before_step = before_step
    engine.complete(PROMPT, params(max_tokens=20))
    steps = 4 if runs_ahead else 3
    assert futures[0].result() == (steps, len(PROMPT) + steps - 1, 0)


def test_prefixes_of_other_salts_are_out_of_reach(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "slot"
    with start() as engine:
        engine.complete(PROMPT, params(cache_salt="mine"))
        engine.complete(PROMPT, params(id_slot=1))  # what it would find is no sign of the other
        assert (save_slot(engine, 0, file)[0], erase_slot(engine, 0)) == (0, 0)
        assert save_slot(engine, 0, file, "mine")[0] == SAVED
        with pytest.raises(InvalidRequestError, match="another cache_salt or API key"):
            restore_slot(engine, 0, file)
        assert restore_slot(engine, 0, file, "mine")[0] == SAVED


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        (0, "no slot file of this version"),
        (8, "no slot file of this version"),
        (12, "it is damaged"),  # tokens
        (16, "it is damaged"),  # pages
        (20, "it is damaged"),  # snapshots
        (24, "another model, KV type or version"),
        (60, "another cache_salt"),
        (100, "it is damaged"),  # the digest
        (130, "it is damaged"),  # an id
        (-1, "a page is damaged"),
    ],
)
def test_a_damaged_file_is_refused(start: Start, file: Path, at: int, problem: str) -> None:
    damaged(file, at)
    with start() as engine:
        with pytest.raises(InvalidRequestError, match=problem) as refused:
            restore_slot(engine, 0, file)
        assert refused.value.param == "filename"
        assert found(engine) in (0, len(PROMPT) - 1)


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (0, "0 bytes, fewer than"),
        (119, "119 bytes, fewer than"),
        (130, "it is damaged"),
        (500, "it has 500 bytes and not"),
        (-1, "bytes and not"),
    ],
)
def test_a_file_without_its_end_is_refused(
    start: Start, file: Path, size: int, problem: str
) -> None:
    file.write_bytes(file.read_bytes()[:size])
    with start() as engine, pytest.raises(InvalidRequestError, match=problem):
        restore_slot(engine, 0, file)


def test_a_file_with_more_tokens_than_the_context_is_refused(start: Start, file: Path) -> None:
    """It is refused before its ids are read."""
    content = bytearray(file.read_bytes())
    content[12:16] = b"\xff" * 4
    file.write_bytes(content)
    with start() as engine, pytest.raises(InvalidRequestError, match="4294967295 tokens"):
        restore_slot(engine, 0, file)


def test_a_file_of_another_model_is_refused(start: Start, file: Path, tmp_path: Path) -> None:
    executor = FakeExecutor(page_format="other numbers")
    with start(executor) as engine, pytest.raises(InvalidRequestError, match="another model"):
        restore_slot(engine, 0, file)


def test_only_a_regular_file_is_opened(start: Start, file: Path) -> None:
    link, pipe = file.with_name("link"), file.with_name("pipe")
    link.symlink_to(file)
    os.mkfifo(pipe)
    with start() as engine:
        for path in (link, pipe, file.parent, file.with_name("missing")):
            with pytest.raises(InvalidRequestError, match=f"{path.name} cannot be restored"):
                restore_slot(engine, 0, path)


def test_a_full_disk_leaves_no_file(
    start: Start, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, files = file.read_bytes(), sorted(file.parent.iterdir())
    writes: list[object] = []

    def full_once(*arguments: Any) -> None:
        writes.append(None)
        if len(writes) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_all(*arguments)

    monkeypatch.setattr(slot_file, "write_all", full_once)
    with start() as engine:
        for prompt in (PROMPT, "short"):  # a page cannot be written, and the header cannot
            writes.clear()
            engine.complete(prompt, params())
            with pytest.raises(SlotFileError, match="No space left"):
                save_slot(engine, 0, file)
    assert (file.read_bytes(), sorted(file.parent.iterdir())) == (old, files)


def test_a_closed_engine_refuses(start: Start, file: Path) -> None:
    engine = start()
    engine.close()
    for act in (save_slot, restore_slot):
        with pytest.raises(EngineClosedError):
            act(engine, 0, file)
    with pytest.raises(EngineClosedError):
        erase_slot(engine, 0)


def test_a_failed_engine_refuses_waiting_calls(start: Start) -> None:
    executor = FakeExecutor()
    engine = start(executor)
    futures = []

    def fail(step: int) -> None:
        futures.append(engine.thread._loop.calls.add(lambda: None))
        raise RuntimeError("the step fails")

    executor.before_step = fail
    with pytest.raises(EngineFailedError):
        engine.complete(PROMPT, params())
    engine.thread._thread.join(PATIENCE)
    with pytest.raises(ModelPoisonedError):
        futures[0].result(0)


def test_a_restore_goes_on_in_the_next_engine(start: Start, file: Path) -> None:
    executor = FakeExecutor(before_step=burn)
    failing, again = start(executor), start()
    failing.thread.leave_requests_to(lambda left: again.go_on(left, 2) is None)
    assert restore_slot(failing, 3, file) == (SAVED, file.stat().st_size)
    assert found(again) == len(PROMPT) - 1
    assert save_slot(again, 3, file)[0] == SAVED


def test_a_restore_ends_with_the_error_of_its_step(start: Start, file: Path) -> None:
    with pytest.raises(EngineFailedError, match="the step burns") as failed:
        restore_slot(start(FakeExecutor(before_step=burn)), 0, file)
    assert not isinstance(failed.value, ModelPoisonedError)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "/a", "../a", "a\\b", "a\nb", "a\0b", "\ud800", "x" * 65],
)
def test_names_stay_in_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="filename"):
        slot_path(tmp_path, name)


def test_a_name_of_a_file(tmp_path: Path) -> None:
    for name in ("slot1.bin", "my slot", "ö" * 64):
        assert slot_path(tmp_path, name) == tmp_path / name


def test_the_directory_is_private(tmp_path: Path) -> None:
    made = slot_directory(str(tmp_path / "slots"))
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o777)
    with pytest.raises(ConfigError, match=r"slot_save_path .* others may write to it"):
        slot_directory(str(made))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"slot_save_path .* cannot be used"):
        slot_directory(str(tmp_path / "file"))
