"""Settings of ranks that do not fit are refused before anything starts."""

from __future__ import annotations

import pytest

from configs import configured
from heddle.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "param", "problem"),
    [
        (
            {"device": "cpu", "tensor_parallel": 2},
            "tensor_parallel",
            "not run on device 'cpu'",
        ),
        ({"device": "reference", "tensor_parallel": 2}, "tensor_parallel", "use one of: torch"),
        ({"device": "torch", "tensor_parallel": 2, "devices": "0,1"}, "devices", "such as cuda"),
        ({"device": "cuda:1", "tensor_parallel": 2}, "device", "is one GPU"),
        ({"device": "cuda:1", "devices": "1"}, "devices", "whose number is open"),
        ({"device": "cuda", "tensor_parallel": 2, "devices": "0"}, "devices", "2 different GPUs"),
        ({"device": "cuda", "tensor_parallel": 2, "devices": "0,0"}, "devices", "2 different"),
        ({"device": "cuda", "tensor_parallel": 2, "devices": "0,b"}, "devices", "by number"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, param, problem):
    with pytest.raises(ConfigError, match=problem) as refusal:
        configured(**settings).check()
    assert refusal.value.param == param


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"device": "torch", "tensor_parallel": 4},
        {"device": "cuda", "tensor_parallel": 2, "devices": "3, 1"},
        {"device": "cuda:1"},
    ],
)
def test_settings_that_fit_pass(settings):
    configured(**settings).check()
