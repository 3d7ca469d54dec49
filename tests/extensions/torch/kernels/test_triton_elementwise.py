"""Norms, rotations and activations by Triton kernels: those on tensors, and the same anywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from triton_device import DEVICE, torch

from heddle.models.ops import RopeSpec

from heddle.extensions.torch import functions  # isort: skip
from heddle.extensions.torch.kernels.activations import activate, gated, gated_operand  # isort: skip
from heddle.extensions.torch.kernels.norms import add_norm, norm  # isort: skip
from heddle.extensions.torch.kernels.operands import Operand, operand  # isort: skip
from heddle.extensions.torch.kernels.rope import rotate  # isort: skip
from heddle.extensions.torch.ops import TorchOps  # isort: skip
from heddle.extensions.torch.rotation import Rotations  # isort: skip

OPS = TorchOps(
    SimpleNamespace(runs=[], sight=None, device=DEVICE),  # type: ignore[arg-type]
    *(None, None, Rotations(DEVICE), lambda: None),
)


def rows(count: int, width: int, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, width, generator=generator) * 6).to(DEVICE)


@pytest.mark.parametrize(
    ("width", "heads", "own"), [(300, 1, False), (36, 3, False), (36, 3, True)]
)
def test_norm(width: int, heads: int, own: bool) -> None:
    x, w = rows(19, width), rows(1, width if own else width // heads, 2)[0]
    found = norm(x, w, 1e-5, heads)
    torch.testing.assert_close(found, OPS.norm_heads(x, w, 1e-5, heads))
    for place in (0, 7, 18):
        assert torch.equal(norm(x[place : place + 1], w, 1e-5, heads), found[place : place + 1])


def check_operand(found: Operand, right: Operand) -> None:
    assert found.values.dtype == right.values.dtype
    assert torch.equal(found.values, right.values)
    if right.factors is None:
        assert found.factors is None
    else:
        assert torch.equal(found.factors, right.factors)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [300, 40])
def test_adding_and_norming_at_once_changes_no_bits(kind, width: int) -> None:
    x, y, w = rows(19, width), rows(19, width, 3), rows(1, width, 2)[0]
    found = add_norm(x, y, w, 1e-5, kind)
    normed = norm(x + y, w, 1e-5)
    assert torch.equal(found.total, x + y)
    assert torch.equal(found.norm, normed)
    check_operand(found.operand, operand(normed, kind))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "first"), [(20, 0), (12, 0), (12, 8)])
def test_rope(interleaved: bool, dim: int, first: int) -> None:
    spec = RopeSpec(dim, 1e4, interleaved, first=first)
    x, positions = rows(5, 60), torch.tensor([3, 0, 1500, 7, 3], device=DEVICE)
    table = Rotations(DEVICE).table(spec, 1501)
    found = rotate(x, positions, table, spec, 3)
    torch.testing.assert_close(found, OPS.rope(x, positions, spec, 3))
    assert torch.equal(rotate(x[2:3], positions[2:3], table, spec, 3), found[2:3])


@pytest.mark.parametrize(
    "activation",
    [
        "silu",
        "gelu",
        "gelu_erf",
        "relu",
        "clamped",
        "sigmoid",
        "identity",
        "silu_to_7",
        "silu_to_16",
    ],
)
def test_gates(activation: str) -> None:
    gate, up = rows(9, 133), rows(9, 133, 2)
    found = gated(gate, up, activation)
    expected = functions.gated(gate, up, activation)
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=1.3e-6)
    assert torch.equal(gated(gate[8:], up[8:], activation), found[8:])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("activation", "width"), [("silu", 300), ("clamped", 40)])
def test_gating_and_rounding_at_once_changes_no_bits(kind, activation: str, width: int) -> None:
    gate, up = rows(19, width), rows(19, width, 2)
    found, own = gated_operand(gate, up, activation, kind)
    right = gated(gate, up, activation)
    assert torch.equal(found, right)
    check_operand(own, operand(right, kind))


@pytest.mark.parametrize("activation", ["sigmoid", "relu", "clamped", "silu_to_7", "silu_to_16"])
def test_limits_keep_nan(activation: str) -> None:
    """The smaller one of NaN and a number is the number, for a GPU."""
    gate, up = rows(2, 8), rows(2, 8, 2)
    gate[0, 3] = up[1, 5] = torch.nan
    found = gated(gate, up, activation)
    assert found.isnan().nonzero().tolist() == [[0, 3], [1, 5]]
    assert activate(gate, "squared_relu").isnan().nonzero().tolist() == [[0, 3]]


@pytest.mark.parametrize(
    "activation", ["sigmoid", "squared_relu", "gelu", "gelu_erf", "relu", "tanh", "xielu_tail"]
)
def test_activations(activation: str) -> None:
    x = rows(9, 133) * 20
    torch.testing.assert_close(activate(x, activation), OPS.activate(x, activation))


def test_operands_are_divided_exactly() -> None:
    """By powers of two, also where the largest element is tiny or huge."""
    peaks = torch.tensor([0.0, 1e-38, 2.0**-101, 8e-31, 1.0, 3.0, 2.0**100, 3e38])
    x = (peaks[:, None] * torch.tensor([1.0, -0.75, 0.5, 0.25])).to(DEVICE)
    found = operand(x, torch.float16)
    assert found.factors is not None
    exponents = found.factors.log2()
    assert torch.equal(exponents, exponents.round())
    assert exponents.tolist() == [-100.0, -100.0, -100.0, -100.0, 0.0, 1.0, 100.0, 100.0]
    assert torch.equal(found.values, (x.double() / found.factors[:, None].double()).half())
