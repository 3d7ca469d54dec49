"""The measured limits of torch devices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from heddle.extensions.torch import limits  # noqa: E402

HERE = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", HERE)
def test_the_rates_of_a_device_are_measured(device, monkeypatch):
    monkeypatch.setattr(limits, "_BUFFER", 1 << 22)
    measured = limits.measure(torch.device(device), 1 << 20)
    assert measured.memory_buffer == 1 << 22
    assert 1e7 < measured.memory_rate <= measured.weights_rate < 1e14
    assert 1e7 < measured.multiply_rate < 1e16


def test_a_gpu_is_measured_by_copies_and_large_products_of_bfloat16(monkeypatch):
    """The same code on the processor, with a small product."""
    monkeypatch.setattr(limits, "_BUFFER", 1 << 22)
    small = limits.PRODUCTS["cuda"]._replace(side=64, columns=32)
    monkeypatch.setattr(limits, "PRODUCTS", {"cuda": small})

    class Gpu:
        """Tensors for it lie on the processor."""

        type = "cuda"

    processor = torch.device("cpu")
    for name in ("ones", "randn", "empty_like"):
        make = getattr(torch, name)
        monkeypatch.setattr(
            limits.torch, name, lambda *sizes, make=make, **how: make(*sizes, **_on(how))
        )
    monkeypatch.setattr(limits, "device_name", lambda device: "a GPU")

    def _on(how):
        return how | ({"device": processor} if "device" in how else {})

    measured = limits.measure(Gpu(), 1 << 20)
    assert measured.multiplication == "bfloat16 matmul of 32 tokens"
    assert measured.weights_rate >= measured.memory_rate > 0
