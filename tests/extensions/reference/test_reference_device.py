"""An engine on the device "reference": the default model in NumPy, without native arithmetic."""

from __future__ import annotations

import pytest

from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.errors import ConfigError
from heddle.sampling_params import SamplingParams

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0, max_tokens=3, logprobs=2)


def test_it_says_what_the_cpu_says(model_path):
    outputs = []
    for device in ("cpu", "reference"):
        config = EngineConfig(device=device, slots=1, kv_cache=32 << 20)
        with Engine.load(model_path, config) as engine:
            outputs.append(engine.complete("The capital of France is", GREEDY))
    cpu, reference = outputs
    assert cpu.text == reference.text
    assert [one.token for one in cpu.tokens] == [one.token for one in reference.tokens]
    for found, expected in zip(cpu.tokens, reference.tokens, strict=True):
        assert found.logprob == pytest.approx(expected.logprob, abs=0.3)  # 8-bit activations


def test_an_unknown_device_is_refused_before_the_model_is_sought():
    with pytest.raises(ConfigError, match="device 'abacus'"):
        Engine.load("no-such-model", EngineConfig(device="abacus"))
