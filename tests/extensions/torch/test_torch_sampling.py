"""Samplers on the device in a scheduler: company, chunks, preemption, guesses, grammars.

A sequence has the bits that it has alone, and the tokens of the native samplers.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from devices import SAMPLING
from heddle.executors.cpu import mask_threads
from heddle.scheduler.sequence import Sequence
from heddle.step import Deferred, Sampled
from heddle.token_rules import TokenRules
from models.rig import CONTEXT, GREEDY, TEXT, Bits, Rig
from models.tiny.llama import PLAIN
from patience import PATIENCE
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from heddle.sampling_params import SamplingParams
    from heddle.weights.gguf.checkpoint import GGUFCheckpoint

pytest.importorskip("torch")
from heddle.extensions.torch import executor
from heddle.extensions.torch.sampling import Samplers
from no_waits import NoWaits

PROMPTS = [TEXT[:9], TEXT[5:40], TEXT[20:23]]
DRAWN = replace(GREEDY, temperature=1.5, top_p=0.95, top_k=20, min_p=0.01, max_tokens=8)
PARAMS = {
    "greedy": replace(GREEDY, max_tokens=8),
    "drawn": DRAWN,
    "penalised": replace(DRAWN, repetition_penalty=1.4, frequency_penalty=0.5, repeat_last_n=20),
    "diluted": replace(DRAWN, dry_multiplier=0.8, dry_allowed_length=1),
    "odd": replace(DRAWN, typical_p=0.9, xtc_probability=0.5, dynatemp_range=0.4, top_n_sigma=3.0),
    "biased": replace(DRAWN, logit_bias={3: 2.0, 5: -4.0}, post_sampling_probs=True, top_p=1.0),
    "native": replace(DRAWN, mirostat=2),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> GGUFCheckpoint:
    return replace(PLAIN, context=CONTEXT).checkpoint(tmp_path_factory.mktemp("model"))


def rig_on(checkpoint: GGUFCheckpoint, device: str = SAMPLING, **settings: object) -> Rig:
    return Rig(
        checkpoint, **({"device": device, "threads": 1, "slots": 4, "kv_cache": 1 << 20} | settings)
    )


def tokens(outputs: list[Bits]) -> list[list[int]]:
    return [[token for token, _, _ in output] for output in outputs]


@pytest.mark.parametrize("name", PARAMS)
def test_steps_run_ahead_where_the_device_samples(checkpoint: GGUFCheckpoint, name: str) -> None:
    """They change no bit."""
    waiting = rig_on(checkpoint)
    waiting.executor.runs_ahead = False  # type: ignore[misc]
    expected = waiting.run(PROMPTS, PARAMS[name])
    assert waiting.steps_ahead == 0
    rig = rig_on(checkpoint)
    assert rig.run(PROMPTS, PARAMS[name]) == expected
    assert (rig.steps_ahead > 5) == (name != "native")
    before = rig.steps_ahead
    rig.run([PROMPTS[0]], replace(PARAMS[name], max_tokens=1))
    assert rig.steps_ahead == before, "a sequence that ends needs no further step"


@pytest.mark.parametrize("name", PARAMS)
def test_a_step_that_is_started_waits_for_nothing(
    checkpoint: GGUFCheckpoint, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host reads the rows of the step and starts its samplers while the device computes.

    A test of the chain has each sampler, with more tokens than a list begins with.
    """

    def without_waits(function: Any) -> Any:
        def call(*args: Any) -> Any:
            with NoWaits():
                return function(*args)

        return call

    monkeypatch.setattr(executor, "read", without_waits(executor.read))
    monkeypatch.setattr(Samplers, "start", without_waits(Samplers.start))
    rig = rig_on(checkpoint)
    rig.run(PROMPTS, PARAMS[name])


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_company_chunks_and_guesses_change_no_bit(
    checkpoint: GGUFCheckpoint, params: SamplingParams
) -> None:
    plain = rig_on(checkpoint, batch_tokens=CONTEXT, prefix_cache=False).run(PROMPTS, params)
    chunked = rig_on(checkpoint, batch_tokens=7, slots=2).run(PROMPTS, params)
    assert chunked == plain
    guessing = rig_on(checkpoint, batch_tokens=60, outputs=plain)
    assert guessing.run(PROMPTS, params) == plain
    assert guessing.speculator is not None
    assert guessing.speculator.counts.drafted > guessing.speculator.counts.accepted > 0
    assert rig_on(checkpoint, slots=1).run(PROMPTS[:1], params) == plain[:1]
    assert tokens(rig_on(checkpoint, "torch").run(PROMPTS, params)) == tokens(plain)


@pytest.mark.parametrize("name", ["penalised", "diluted"])
def test_preemption_rebuilds_a_history(checkpoint: GGUFCheckpoint, name: str) -> None:
    """Pages run out. A slot that another sequence had leaves no counts."""
    prompts = [TEXT[i : i + 60] for i in (0, 100, 200)]
    params = replace(PARAMS[name], max_tokens=40)
    roomy = rig_on(checkpoint, prefix_cache=False)
    tight = rig_on(checkpoint, kv_cache=9 * roomy.executor.memory.page_bytes)
    assert tight.run(prompts, params) == roomy.run(prompts, params)
    assert tight.scheduler.admission.preemptions > 0
    assert tight.steps_ahead > 5


@pytest.mark.parametrize("name", ["penalised", "diluted"])
def test_a_cancelled_sequence_leaves_its_slot_no_history(
    checkpoint: GGUFCheckpoint, name: str
) -> None:
    """Two steps with it are in flight. The third sequence gets its slot."""
    expected = rig_on(checkpoint).run(PROMPTS, PARAMS[name])
    rig = rig_on(checkpoint, slots=2)

    def cancel() -> None:
        if rig.steps_ahead == 3 and rig.submitted == 2:
            rig.scheduler.cancel(0)

    cancelled, *others = rig.run(PROMPTS, PARAMS[name], cancel)
    assert others == expected[1:]
    assert cancelled == expected[0][: len(cancelled)]
    assert 0 < len(cancelled) < len(expected[0])
    assert rig.steps_ahead > 5


class Late:
    """Allows the tokens above 7. Each mask waits for the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def begin(self) -> Late:
        return self

    def next_mask(self, tokens: Tokens) -> bytes:
        assert self.gate.wait(PATIENCE)
        return b"\0" + b"\xff" * 20

    def rewind(self, count: int) -> bool:
        return True


def test_a_sampler_whose_mask_is_late_keeps_its_state(
    checkpoint: GGUFCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = replace(PARAMS["penalised"], max_tokens=6, seed=0)
    grammar = Late()
    grammar.gate.set()
    runs = []
    for is_late in (False, True):
        monkeypatch.setattr(mask_threads, "PATIENCE", 0.01 if is_late else PATIENCE)
        rig, late = rig_on(checkpoint, slots=1), 0
        rules = TokenRules(grammar=grammar)
        sequence = Sequence(0, params, list(TEXT[:9]), 9, frozenset(), rules=rules)
        rig.scheduler.add(sequence)
        said: Bits = []
        while rig.scheduler.busy:
            if is_late and sequence.awaited is None:
                grammar.gate.clear()
            elif sequence.awaited is not None:
                grammar.gate.set()
                sequence.awaited.result(PATIENCE)
            result = execute(rig.executor, rig.scheduler.schedule())
            late += sum(isinstance(one, Deferred) for one in result.sampled)
            for event in rig.scheduler.update(result):
                assert isinstance(event.outcome, Sampled)
                said.append((event.outcome.token, event.outcome.logprob, event.outcome.top))
        assert late == (len(said) if is_late else 0)
        runs.append(said)
    assert runs[0] == runs[1]
    assert all(token > 7 for token, _, _ in runs[0])
