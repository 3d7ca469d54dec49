"""A model whose own head guesses gives the bits that it gives without guesses, alone or in company.

The models are tiny. One head is random, and mostly wrong. Another model's next token depends on its
last token alone, and its head knows all of them or most of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from configs import configured
from heddle.engine.engine import Engine
from heddle.errors import InvalidRequestError
from heddle.sampling_params import SamplingParams
from models.tiny import deepseek_v3, qwen3_5
from models.tiny.glm4_moe import MODELS, TinyGlm4Moe

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.outputs import Output
    from models.tiny.base_heads import TinyHead

RECURRENT = replace(qwen3_5.MODELS[0], name="recurrent", mtp=True, context=512)
LATENT = replace(deepseek_v3.MODELS[0], name="latents", mtp=True, context=512)
RANDOM = replace(next(model for model in MODELS if model.mtp), context=512)


@dataclass(frozen=True)
class Orbit(TinyGlm4Moe):
    """After token t comes t * 5 + 1. The head is right except after tokens below `wrong`.

    The head guesses from the next token, or with `looks_back` from the state alone: the model's, of
    the token before the next one, or its own.
    """

    wrong: int = 0
    looks_back: bool = False

    def state(self) -> dict[str, np.ndarray]:
        state, size = super().state(), self.vocabulary
        for name, values in state.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                values[:] = 0
        one_hot = np.eye(size, dtype=np.float32)
        follows = np.zeros_like(one_hot)
        follows[(np.arange(size) * 5 + 1) % size, np.arange(size)] = 20
        guessed = follows.copy()
        guessed[:, : self.wrong] = np.roll(follows[:, : self.wrong], 1, axis=0)
        halves = [0 * one_hot, follows] if self.looks_back else [one_hot, 0 * one_hot]
        own = f"model.layers.{self.layers}."
        return state | {
            "model.embed_tokens.weight": one_hot,
            "lm_head.weight": follows,
            f"{own}eh_proj.weight": np.concatenate(halves, axis=1),
            f"{own}embed_tokens.weight": one_hot,
            f"{own}shared_head.head.weight": guessed,
        }


ORBIT = Orbit("orbit", 3, 1, 48, tied=False, groups=1, groups_used=1, mtp=True, context=512)
NEARLY = replace(ORBIT, name="nearly", wrong=9)

GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=5, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=1.2, seed=7, top_p=0.95)
PENALISED = replace(GREEDY, temperature=1.5, seed=11, repetition_penalty=1.3, top_k=20)
REQUESTS = [
    ([3, 1, 4], GREEDY),
    ([2, 7] * 40, DRAWN),
    (list(range(30)) * 3, PENALISED),
    ([9], replace(DRAWN, max_tokens=40)),
    ([2, 7] * 40, replace(GREEDY, max_tokens=19)),
]
GUESS = {"drafter": "mtp", "length": 4}


def load(model: TinyHead, folder: Path, **changes: object) -> Engine:
    settings: dict[str, object] = {"slots": 4, "threads": 1, "kv_cache": 1 << 22, "watchdog": 0}
    return Engine.load(
        str(model.write_folder(folder / "tiny")),
        configured(**settings | changes),
    )


def run(engine: Engine, speculation: object, workers: int) -> list[tuple[object, ...]]:
    def one(request: tuple[list[int], SamplingParams]) -> tuple[object, ...]:
        prompt, params = request
        output: Output = engine.complete(prompt, replace(params, speculation=speculation))
        return output.tokens, output.finish, output.usage.completion_tokens

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, REQUESTS))


@pytest.fixture(scope="module", params=[RANDOM, ORBIT, NEARLY], ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> TinyGlm4Moe:
    return request.param


@pytest.fixture(scope="module")
def plain(model: TinyGlm4Moe, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    config = {"slots": 1, "prefix_cache": False, "speculation": "off"}
    with load(model, tmp_path_factory.mktemp("plain"), **config) as engine:
        return run(engine, None, 1)


@pytest.mark.parametrize(
    "config",
    [{"threads": 2}, {"batch_tokens": 16}, {"slots": 1}, {"kv_cache": 8 * 4 * 6144}],
    ids=str,
)
def test_the_outputs_are_the_same(
    model: TinyGlm4Moe, plain: list[tuple[object, ...]], config: dict[str, object], tmp_path: Path
) -> None:
    small = "kv_cache" in config
    with load(model, tmp_path, **config) as engine:
        for again in range(50):  # from the second round on, prompts are in the prefix cache
            assert run(engine, GUESS, 5) == plain
            figures = engine.snapshot()
            if again and (figures.preemptions or not small):
                break  # on a busy machine, requests may come one after the other
    assert figures.drafted_tokens > figures.accepted_tokens or model is ORBIT
    # A preempted sequence gets guesses again when it comes back.
    assert figures.accepted_tokens > {RANDOM: 0, NEARLY: 100, ORBIT: 140}[model]
    assert (figures.preemptions > 0) == small


@pytest.mark.parametrize("model", [RECURRENT, LATENT], ids=lambda model: model.architecture)
def test_heads_of_other_families(model: TinyHead, tmp_path: Path) -> None:
    """Of a model with recurrences, whose states go back after wrong guesses, and with latents."""
    with load(model, tmp_path, slots=1, prefix_cache=False, speculation="off") as engine:
        plain = run(engine, None, 1)
    with load(model, tmp_path) as engine:
        for _ in range(2):
            assert run(engine, GUESS, 5) == plain
        figures = engine.snapshot()
    assert figures.drafted_tokens > figures.accepted_tokens > 0


@pytest.mark.parametrize("model", [ORBIT, NEARLY], ids=lambda model: model.name, scope="function")
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("looks_back", [False, True])
@pytest.mark.parametrize("prompt", [[3], [3, 16, 17, 22, 15]], ids=str)
def test_every_guess_is_the_heads(
    model: Orbit, length: int, looks_back: bool, prompt: list[int], tmp_path: Path
) -> None:
    """A step accepts the guesses up to the first one after a token that the head does not know."""
    guess = {"drafter": "mtp", "length": length}
    with load(replace(model, looks_back=looks_back), tmp_path) as engine:
        output = engine.complete(prompt, replace(GREEDY, speculation=guess))
        figures = engine.snapshot()
    tokens = [one.token for one in output.tokens]
    known, drafted, accepted = 1, 0, 0
    while known < len(tokens):
        most = min(length, len(tokens) - known - 1)
        right = 0
        while right < most and tokens[known - 1 + right] >= model.wrong:
            right += 1
        known, drafted, accepted = known + right + 1, drafted + most, accepted + right
    usage = output.usage
    assert (usage.drafted_tokens, usage.accepted_tokens) == (drafted, accepted)
    assert (figures.drafted_tokens, figures.accepted_tokens) == (drafted, accepted)


@pytest.mark.usefixtures("costless_guesses")
def test_a_head_guesses_by_itself_where_it_pays(tmp_path: Path) -> None:
    """The text repeats only after 32 tokens, so that no other drafter knows anything."""
    with load(ORBIT, tmp_path) as engine:
        usage = engine.complete([3], GREEDY).usage
    assert usage.accepted_tokens > 8


@pytest.mark.parametrize("config", [{"speculation": "off"}, {"draft": "itself"}], ids=str)
def test_a_head_that_nobody_uses_is_not_loaded(config: dict[str, str], tmp_path: Path) -> None:
    if "draft" in config:
        config = {"draft": str(ORBIT.write_folder(tmp_path / "tiny"))}
    with load(ORBIT, tmp_path, **config) as engine:
        assert engine.model.executor.head is None
        with pytest.raises(InvalidRequestError, match="'mtp'; this model has lookup, engram"):
            engine.complete([3], replace(GREEDY, speculation=GUESS))


def test_a_head_that_fails_ends_its_guesses_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with load(ORBIT, tmp_path) as engine:
        asked = replace(GREEDY, speculation=GUESS)
        expected = engine.complete([3], asked).tokens
        head = engine.model.executor.head
        assert head is not None
        monkeypatch.setattr(head, "submit", lambda plan: 1 // 0)
        assert engine.complete([3], asked).tokens == expected
        assert engine.complete([3], asked).usage.drafted_tokens == 0
        assert engine.health.ready
    assert "the model's prediction head failed; it makes no more guesses" in caplog.text
