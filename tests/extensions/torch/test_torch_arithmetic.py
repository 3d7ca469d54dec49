"""Arithmetic on torch tensors: equal to its definitions, and the same wherever an element lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from heddle.errors import ConfigError
from heddle.extensions.reference.ops import ReferenceOps, route
from heddle.models.ops import ExpertSpec
from heddle.weights.tensor_types import TensorType, dequantize
from tensor_blocks import random_matrix

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")
from heddle.extensions.torch import functions  # noqa: E402
from heddle.extensions.torch.blocks import BLOCKS, FLOATS, decode, fields_of  # noqa: E402
from heddle.extensions.torch.constants import Constants  # noqa: E402
from heddle.extensions.torch.routing import choose  # noqa: E402
from heddle.extensions.torch.tiles import TILE, check_columns, multiply  # noqa: E402


def test_every_supported_type_has_a_decoder() -> None:
    assert {*BLOCKS, *FLOATS} == {*TensorType.supported()}
    for kind, block in BLOCKS.items():
        assert sum(block.sizes) == kind.block_bytes


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_blocks_have_the_values_of_their_definition(kind: TensorType) -> None:
    """Trained weights, any bytes at all, and blocks of one byte; infinities and NaN, too."""
    rng = np.random.default_rng(1)
    rows, blocks = 256, 3
    columns = blocks * kind.block_elements
    trained = random_matrix(rng, kind, rows, columns).reshape(rows, -1)
    random = rng.integers(0, 256, trained.shape, np.uint8)
    same = np.repeat(np.arange(rows, dtype=np.uint8)[:, None], trained.shape[1], 1)
    raw = np.concatenate([trained, random, same])
    fields = fields_of(torch.from_numpy(raw), kind)
    found = decode(fields, kind).numpy()
    expected = dequantize(raw.ravel(), kind, (3 * rows, columns))
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), ~finite)
    np.testing.assert_array_equal(found.view(np.uint32)[finite], expected.view(np.uint32)[finite])
    # Parts of rows and columns, as slices of the fields.
    at = slice(5, 9), slice(1, 3)
    part = [
        field[at[0], at[1].start * size : at[1].stop * size]
        for field, size in zip(fields, BLOCKS[kind].sizes, strict=True)
    ]
    np.testing.assert_array_equal(
        decode(part, kind), expected[at[0], kind.block_elements : 3 * kind.block_elements]
    )


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_floats_have_the_values_of_their_definition(kind: TensorType) -> None:
    raw = np.random.default_rng(2).integers(0, 256, (5, 7 * kind.block_bytes), np.uint8)
    found = decode(fields_of(torch.from_numpy(raw), kind), kind).numpy()
    np.testing.assert_array_equal(found, dequantize(raw.ravel(), kind, (5, 7)))


def test_exp_is_near_the_truth_and_has_its_limits() -> None:
    x = torch.linspace(-87, 88, 100_003)
    found, expected = functions.exp(x).double(), x.double().exp()
    assert ((found - expected).abs() / expected).max() < 2e-7
    ends = functions.exp(torch.tensor([-torch.inf, -100.0, 0.0, 89.0, torch.inf, torch.nan]))
    np.testing.assert_array_equal(ends, [0, 0, 1, np.inf, np.inf, np.nan])


UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": functions.exp,
    "sigmoid": functions.sigmoid,
    "tanh": functions.tanh,
    "silu": lambda x: functions.gated(x, x, "silu"),
    "gelu": lambda x: functions.gated(x, x, "gelu"),
    "clamped": lambda x: functions.gated(x, x, "clamped"),
    "gelu_erf": lambda x: functions.gated(x, x, "gelu_erf"),
    "xielu_tail": functions.xielu_tail,
}


@pytest.mark.parametrize("name", UNARY)
def test_a_function_depends_neither_on_an_elements_place_nor_on_its_company(name: str) -> None:
    """torch's own `exp` and `silu` differ in the last bit at the end of an array."""
    x = torch.randn(70_000, generator=torch.Generator().manual_seed(3)) * 8
    whole = UNARY[name](x)
    for first, last in ((1, 70_000), (0, 1), (5, 22), (69_983, 70_000), (40_000, 40_031)):
        assert torch.equal(UNARY[name](x[first:last]), whole[first:last])
    assert torch.equal(UNARY[name](x.reshape(700, 100).T), whole.reshape(700, 100).T)


GATES = [
    "silu",
    "gelu",
    "gelu_erf",
    "relu",
    "clamped",
    "sigmoid",
    "identity",
    "silu_to_7",
    "silu_to_16",
]


@pytest.mark.parametrize(
    "activation", ["sigmoid", "squared_relu", "gelu", "gelu_erf", "tanh", "xielu_tail"]
)
def test_activations_agree_with_the_reference(activation: str) -> None:
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(5)) * 6
    expected = ReferenceOps([]).activate(x.numpy(), activation)
    found = functions.activated(x, activation).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("activation", GATES)
def test_gates_agree_with_the_reference(activation: str) -> None:
    gate, up = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(4)) * 6
    found = functions.gated(gate, up, activation).numpy()
    expected = ReferenceOps([]).gated(gate.numpy(), up.numpy(), activation)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 575])
def test_sums_are_those_of_any_shape(count: int) -> None:
    x = torch.randn(5, count, generator=torch.Generator().manual_seed(count))
    found = functions.total(x)
    np.testing.assert_allclose(found[:, 0], x.double().sum(-1), rtol=1e-6, atol=1e-5)
    assert torch.equal(functions.total(x[3:4]), found[3:4])
    assert torch.equal(functions.total(x.T, 0), found.T)


@pytest.mark.parametrize(("n", "k"), [(1, 3), (31, 17), (48, 256), (100, 33), (3, 1000)])
def test_a_token_in_any_place_of_any_tile_has_the_same_products(n: int, k: int) -> None:
    generator = torch.Generator().manual_seed(n)
    weights, x = (torch.randn(rows, k, generator=generator) for rows in (n, 3 * TILE))
    whole = multiply(x, [weights], n)
    np.testing.assert_allclose(whole, x.double() @ weights.double().T, atol=1e-3)
    check_columns(weights, TILE)
    for place in (0, 5, TILE - 1):
        alone = torch.zeros(TILE, k)
        alone[place] = x[20]
        assert torch.equal(multiply(alone, [weights], n)[place], whole[20])


class Lopsided:
    """A matrix whose products with the last column are wrong in the last bit."""

    shape = (2, 3)
    device = torch.device("cpu")

    def __matmul__(self, right: Any) -> Any:
        product = torch.ones(2, 3) @ right
        product[:, -1] = torch.nextafter(product[:, -1], torch.tensor(torch.inf))
        return product


def test_a_device_that_favours_a_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"multiplies \(2, 3\) by 16 columns differently"):
        check_columns(Lopsided(), TILE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spec",
    [
        ExpertSpec(8, 3, "softmax"),
        ExpertSpec(8, 3, "softmax", normalised=True, scale=1.5),
        ExpertSpec(8, 2, "softmax_of_chosen", expert_scales=(0.5, 1, 2, 1, 1, 3, 1, 1)),
        ExpertSpec(8, 2, "sparsemixer"),
        ExpertSpec(8, 3, "sigmoid", normalised=True, groups=4, groups_used=2),
        ExpertSpec(
            8, 2, "sigmoid", groups=2, groups_used=1, selection_bias=(0, 1, 0, 0, 2, 0, 0, 0)
        ),
    ],
    ids=str,
)
def test_tokens_choose_the_experts_of_the_reference(spec: ExpertSpec) -> None:
    logits = np.random.default_rng(5).normal(0, 2, (40, 8)).astype(np.float32)
    logits[7] = 1.0  # all equal: the lower index
    logits[8, ::3] = logits[8].max() * np.array([1, 0.99, 0.97], np.float32)
    chosen, weights = choose(torch.from_numpy(logits), spec, Constants())
    expected, factors = route(logits, spec)
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_allclose(weights, factors, rtol=1e-5)
