"""Readers of the keys of config.json that only Falcon-H1 has: most are factors (multipliers).

llama.cpp's converter multiplies the weights by all of them, so a GGUF file has no key for them: the
embedding, the output matrix, all matrices of attention and Mamba-2, and gate and down of the
feed-forward part.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.hybrids.config.mixers import check_mixer, product

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


_STREAMS = 5  # gates, values, keys, queries, step sizes


def sizes(config: Config) -> dict[str, object]:
    """The width of the recurrence, and all factors.

    Factors of inputs and of keys become factors of scores, of streams and of results: what lies
    between is linear.

    Raises:
        ModelFileError: a factor is no positive number.
        UnsupportedModelError: the recurrence, or a bias, has a form that is not supported.
    """
    check_mixer(config, "hidden_act")
    if config.get("mamba_rms_norm", False) and config.get("mamba_norm_before_gate", True):
        raise UnsupportedModelError(
            "config.json: mamba_norm_before_gate True is not supported with mamba_rms_norm;"
            " supported: False",
            param="mamba_norm_before_gate",
        )
    attention = _factor(config, "attention_in_multiplier")
    mixer = _factor(config, "ssm_in_multiplier")
    _check_bias(config, "attention_bias", attention)
    _check_bias(config, "mamba_proj_bias", mixer)
    gate, down = _factors(config, "mlp_multipliers", 2)
    found: dict[str, object] = {
        "recurrence_beside": True,
        "attention.result_scale": attention * _factor(config, "attention_out_multiplier"),
        "state.stream_scales": [
            mixer * stream for stream in _factors(config, "ssm_multipliers", _STREAMS)
        ],
        "state.result_scale": _factor(config, "ssm_out_multiplier"),
        "mlp.gate_scale": gate,
        "mlp.result_scale": down,
        "logit_divisor": 1 / _factor(config, "lm_head_multiplier"),
    }
    head = config.get("head_dim") or _quotient(config, "hidden_size", "num_attention_heads")
    if type(head) is int and head > 0:
        scores = attention**2 * _factor(config, "key_multiplier")
        found["attention.scale"] = scores / math.sqrt(head)
    inner = config.get("mamba_d_ssm") or product(config, "mamba_expand", "hidden_size")
    return found if inner is None else found | {"state.inner": inner}


def _factor(config: Config, key: str) -> float:
    value = config.get(key)
    return 1.0 if value is None else _positive(key, value)


def _factors(config: Config, key: str, count: int) -> list[float]:
    values = config.get(key)
    if values is None:
        return [1.0] * count
    if not isinstance(values, list) or len(values) != count:
        raise ModelFileError(f"{key} must be a list of {count} numbers, got {values!r}", field=key)
    return [_positive(key, value) for value in values]


def _positive(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-9 < value < 1e9:
        raise ModelFileError(f"{key} must be a positive number, got {value!r}", field=key)
    return float(value)


def _quotient(config: Config, key: str, divisor: str) -> int | None:
    value, by = config.get(key), config.get(divisor)
    return value // by if type(value) is int and type(by) is int and by > 0 else None


def _check_bias(config: Config, key: str, factor: float) -> None:
    """Check that the matrix under this factor has no bias, which the factor would not multiply."""
    if config.get(key) and factor != 1.0:
        raise UnsupportedModelError(
            f"config.json: {key} {config[key]!r} is not supported with a multiplier of its input"
            f" of {factor:g}; supported: False",
            param=key,
        )
