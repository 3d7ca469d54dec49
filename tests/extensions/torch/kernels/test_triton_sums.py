"""Running sums by a Triton kernel have the bits of those by torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from triton_device import DEVICE, run_without_interpreter, torch

if TYPE_CHECKING:
    from pathlib import Path

from heddle.extensions.torch import sums  # isort: skip
from heddle.extensions.torch.kernels import sums as kernels  # isort: skip


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 257, 1024, 5000])
def test_running_sums_have_the_bits_of_torch(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = torch.rand(3, columns, generator=generator, dtype=torch.float64).pow(20)
    x[1, columns // 3 :] = 0.0
    expected = sums.prefix_sums(x)
    given = x.to(DEVICE)
    found = kernels.prefix_sums(given)
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(given.cpu(), x), "it is the caller's"
    assert torch.equal(kernels.prefix_sums(given[2:]).cpu(), expected[2:])
    half = given[:, : columns // 2 + 1]
    assert torch.equal(kernels.prefix_sums(half).cpu(), expected[:, : columns // 2 + 1])


def test_the_sampler_uses_the_kernel_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        device = torch.device("cuda")

    monkeypatch.setattr(kernels, "prefix_sums", lambda x: ("kernel", x))
    given = OnGpu()
    assert sums.prefix_sums(given) == ("kernel", given)


def test_the_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    run_without_interpreter("compile_sums.py", tmp_path)
