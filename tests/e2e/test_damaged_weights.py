"""A request that reaches a damaged weight ends alone; all others get their usual bits.

The model is a small random one, in float32 and in Q8_0, in which the embedding of one token is NaN,
infinite, or so large that its squares are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import gguf.quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from fake_executor import FakeExecutor
from fake_model import fake_model
from gguf_writer import Tensor, write_gguf
from heddle import _native
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.errors import NonFiniteLogitsError
from heddle.executors.cpu.load import load
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny.llama import TinyLlama

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.outputs import Output

MODEL = TinyLlama("untied", heads=4, kv_heads=2, head_dim=16, tied=False, ffn_width=64)
POISON = 13
AVOIDING = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2, logit_bias={POISON: -100.0})
NEIGHBOURS = [
    ([1 + seed, 20, 3 * seed, 7] * (1 + seed), replace(AVOIDING, seed=seed)) for seed in range(8)
]
BY_PROMPT = ([1, 2, POISON, 4], replace(AVOIDING, seed=1))
BY_OUTPUT = ([1, 2, 3], replace(AVOIDING, temperature=0, logit_bias={POISON: 100.0}))


def write_model(path: Path, poison: float, quantised: bool, norm: float = 0) -> Path:
    """`poison` goes into a token's embedding, `norm`, if it is not 0, into one of the norms."""
    tensors = []
    for name, values in MODEL.state().items():
        gguf_name = MODEL.gguf_name(name)
        array = MODEL.gguf_values(name, values)
        if gguf_name == "token_embd.weight":
            array[POISON, 5] = poison
        elif gguf_name == "output_norm.weight" and norm:
            array[7] = norm
        elif quantised and array.ndim == 2:
            blocks = gguf.quants.quantize(array, GGMLQuantizationType.Q8_0)
            tensors.append(Tensor(gguf_name, blocks.tobytes(), array.shape, TensorType.Q8_0))
            continue
        tensors.append(Tensor.of(gguf_name, array))
    return write_gguf(path, MODEL.metadata(), tensors)


def start(path: Path, isa: str, slots: int) -> Engine:
    config = EngineConfig(slots=slots, threads=2, isa=isa, allow_nonfinite=True)
    executor = load(GGUFCheckpoint.open(path), config)
    model = replace(fake_model(FakeExecutor()), shape=executor.shape, executor=executor)
    return Engine(model, config)


def run(engine: Engine, requests) -> list[Output | NonFiniteLogitsError]:
    """Send the requests at once, and return the end of each."""
    collectors = [Collector() for _ in requests]
    engine.submit_many(
        [(*request, sink) for request, sink in zip(requests, collectors, strict=True)]
    )
    ends: list[Output | NonFiniteLogitsError] = []
    for collector in collectors:
        try:
            ends.append(collector.wait())
        except NonFiniteLogitsError as error:
            ends.append(error)
    return ends


@pytest.mark.parametrize("isa", _native.isa_levels())
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_neighbours_of_a_damaged_token_do_not_notice(tmp_path, poison, quantised, isa) -> None:
    path = write_model(tmp_path / "damaged.gguf", poison, quantised)
    with start(path, isa, slots=1) as engine:
        alone = [end for request in NEIGHBOURS for end in run(engine, [request])]
        assert len({end.text for end in alone}) == len(NEIGHBOURS)
    with start(path, isa, slots=10) as engine:
        first, *ends, last = run(engine, [BY_PROMPT, *NEIGHBOURS, BY_OUTPUT])
        assert ends == alone
        assert "after 4 tokens" in first.message
        assert "after 4 tokens" in last.message  # after the one that it had generated
        assert engine.snapshot().finished[FinishReason.ERROR] == 2
        # Nor those who get its pages afterwards.
        assert run(engine, NEIGHBOURS) == alone


def test_the_tokens_before_the_damaged_one_are_delivered(tmp_path) -> None:
    path = write_model(tmp_path / "damaged.gguf", np.nan, quantised=True)
    with start(path, "auto", slots=1) as engine:
        stream = engine.stream(*BY_OUTPUT)
        assert [token.token for token in next(stream).tokens] == [POISON]
        with pytest.raises(NonFiniteLogitsError, match="NaN or infinite"):
            next(stream)


@pytest.mark.parametrize("isa", _native.isa_levels())
@pytest.mark.parametrize("norm", [np.nan, np.inf, -np.inf])
def test_one_damaged_weight_of_a_norm_is_found_at_every_level(
    tmp_path: Path, isa: str, norm: float
) -> None:
    """Quantised, such a value would come out as a number, another one at each level."""
    path = write_model(tmp_path / "norm.gguf", 0.0, quantised=True, norm=norm)
    with start(path, isa, 1) as engine:
        [end] = run(engine, [BY_PROMPT])
    assert isinstance(end, NonFiniteLogitsError)
