"""Native experts against the reference, and against themselves: one result whatever computes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from programs import F32, ISA_LEVELS, NO_BIAS, Bench, as_bytes

from heddle.extensions.reference.ops import ExpertStack, ReferenceOps, route
from heddle.models.ops import ExpertSpec, ExpertWeights
from heddle.weights.tensor_types import TensorType, dequantize
from tensor_blocks import FLOATS, QUANTISED, random_matrix

COUNT, WIDTH, HIDDEN = 6, 48, 33
SPEC = ExpertSpec(COUNT, 3, "softmax", normalised=True)
ROUTINGS = (
    SPEC,
    replace(SPEC, normalised=False, scale=2.5),
    replace(SPEC, scoring="softmax_of_chosen"),
    replace(SPEC, scoring="sigmoid", selection_bias=(0.4, -0.3, 0.1, 0, 0, -0.6)),
    replace(SPEC, normalised=True, expert_scales=(0.5, 2.0, 0.25, 1.5, 3.0, 0.75)),
    replace(SPEC, scoring="sigmoid", groups=3, groups_used=2, selection_bias=(1, 0, 0, 0, 0.2, 0)),
    replace(SPEC, scoring="sigmoid", normalised=False, groups=2, groups_used=1),
    replace(SPEC, normalised=False, groups=3, groups_used=2, group_best=1),
    replace(SPEC, scoring="sparsemixer", normalised=False),
    replace(SPEC, used=6, activation="gelu"),
    replace(SPEC, used=1, activation="clamped"),
)


class Layer:
    """One layer's experts in one tensor type: their file bytes, and their values."""

    def __init__(self, type: TensorType, width: int, hidden: int, biased: bool = False) -> None:
        rng = np.random.default_rng(1)
        shapes = {"gate": (hidden, width), "up": (hidden, width), "down": (width, hidden)}
        self.type, self.shapes = type, shapes
        self.raw = {
            name: [random_matrix(rng, type, *shape) for _ in range(COUNT)]
            for name, shape in shapes.items()
        }
        self.biases = {
            name: [
                rng.normal(0, 1, shape[0]).astype(np.float32) if biased else NO_BIAS
                for _ in range(COUNT)
            ]
            for name, shape in shapes.items()
        }
        self.biased = biased

    def reference(self) -> ExpertWeights:
        def stack(name):
            values = [dequantize(raw, self.type, self.shapes[name]) for raw in self.raw[name]]
            return ExpertStack(
                np.stack(values), np.stack(self.biases[name]) if self.biased else None
            )

        return ExpertWeights(*(stack(name) for name in ("gate", "up", "down")))

    def run(self, isa, x, logits, spec=SPEC, threads=1):
        """The native result of x (T, width) with router logits (T, COUNT)."""
        bench = Bench(isa, len(x), threads)
        stacks = [
            [
                bench.matrix(int(self.type), raw, *self.shapes[name], bias)
                for raw, bias in zip(self.raw[name], self.biases[name], strict=True)
            ]
            for name in ("gate", "up", "down")
        ]
        source, chooser = bench.table(x), bench.table(logits)
        if self.type in QUANTISED:
            bench.program.quantise(source)
        out = bench.program.buffer(x.shape[1], per_row=False)
        add_experts(bench.program, source, chooser, out, stacks, spec)
        return bench.run(len(x), out)


def add_experts(program, source, chooser, out, stacks, spec):
    program.experts(
        source,
        chooser,
        out,
        *stacks,
        used=spec.used,
        scoring=spec.scoring,
        normalised=spec.normalised,
        scale=spec.scale,
        groups=spec.groups,
        groups_used=spec.groups_used,
        group_best=spec.group_best,
        selection_bias=np.array(spec.selection_bias, np.float32),
        activation=spec.activation,
        expert_scales=np.array(spec.expert_scales, np.float32) if spec.expert_scales else None,
    )


def inputs(tokens, width, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (tokens, width)).astype(np.float32)
    return x, rng.normal(0, 2, (tokens, COUNT)).astype(np.float32)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("spec", ROUTINGS, ids=lambda spec: f"{spec.scoring}-{spec.activation}")
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_float_experts_agree_with_the_reference(isa, spec, biased):
    x, logits = inputs(11, WIDTH)
    layer = Layer(TensorType.F32, WIDTH, HIDDEN, biased)
    expected = ReferenceOps([]).experts(x, logits, layer.reference(), spec)
    found = layer.run(isa, x, logits, spec, threads=2)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_experts_that_are_near_share_a_weight(isa):
    """Those within 2% of an expert's logit, by the larger of its size and theirs."""
    logits = np.array(
        [
            [1.0, 0.985, 0.97, 0.9805, -1.0, 0.0],
            [-1.0, -1.015, -1.03, -5.0, -1.02, -9.0],
            [3.0, 3.0, 3.0, 3.0, 3.0, 3.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.01, 0.0099, -0.01, 0.0, 0.00979, -3.0],
        ],
        np.float32,
    )
    spec = ExpertSpec(COUNT, 2, "sparsemixer")
    chosen, weights = route(logits, spec)
    shares = [
        1 / (1 + np.exp(-0.015) + np.exp(-0.0195)),
        1 / (1 + np.exp(-0.0045) + np.exp(-0.015)),
    ]
    assert chosen[0].tolist() == [0, 1]
    np.testing.assert_allclose(weights[0], shares, rtol=1e-5)
    np.testing.assert_allclose(weights[2], [1 / 6, 1 / 5], rtol=1e-6)
    np.testing.assert_allclose(weights[3], [1 / 6, 1 / 5], rtol=1e-6)
    x, _ = inputs(len(logits), WIDTH)
    layer = Layer(TensorType.F32, WIDTH, HIDDEN)
    expected = ReferenceOps([]).experts(x, logits, layer.reference(), spec)
    found = layer.run(isa, x, logits, spec)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert np.array_equal(found, layer.run(ISA_LEVELS[0], x, logits, spec))


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("type", [*QUANTISED, *FLOATS])
def test_every_tensor_type_agrees_with_the_reference(isa, type):
    """Int8 activations differ by up to half a step of 1/127; their sums by about a per cent."""
    width, hidden = 256, 512
    x, logits = inputs(5, width)
    layer = Layer(type, width, hidden)
    expected = ReferenceOps([]).experts(x, logits, layer.reference(), SPEC)
    distance = layer.run(isa, x, logits) - expected
    assert np.sqrt(np.mean(distance**2)) < 0.02 * np.sqrt(np.mean(expected**2))


TYPES = ("F32", "Q4_K", "Q4_0", "Q6_K", "Q8_0", "Q2_K", "MXFP4")


@pytest.mark.parametrize("type", [TensorType[name] for name in TYPES], ids=TYPES)
@pytest.mark.parametrize("skew", [0, 2])
def test_one_result_whatever_computes_it(type, skew):
    """Bit-equal at every level and thread count, and for every company of other tokens."""
    tokens = 300  # some experts get several groups of tokens; others too few to pack them
    x, logits = inputs(tokens, 256)
    logits += skew * np.arange(COUNT, dtype=np.float32)
    counts = np.bincount(route(logits, SPEC)[0].ravel(), minlength=COUNT)
    assert counts.max() > 120
    assert skew == 0 or 0 < counts.min() < 24
    layer = Layer(type, 256, 256)
    some = range(0, tokens, 19)
    alone = np.concatenate(
        [layer.run(ISA_LEVELS[0], x[i : i + 1], logits[i : i + 1]) for i in some]
    )
    together = layer.run(ISA_LEVELS[0], x, logits, threads=3)
    np.testing.assert_array_equal(together[some], alone)
    for isa in ISA_LEVELS[1:]:
        np.testing.assert_array_equal(layer.run(isa, x, logits, threads=2), together)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_tokens_that_all_choose_the_same_experts_get_the_same_bits(isa):
    x, logits = inputs(40, 256)
    skewed = np.where(np.arange(COUNT) < SPEC.used, 20 + logits, logits)
    layer = Layer(TensorType.Q4_K, 256, 256)
    assert (route(skewed, SPEC)[0] == np.arange(SPEC.used)).all()
    alone = np.concatenate(
        [layer.run(isa, x[i : i + 1], skewed[i : i + 1], threads=2) for i in range(len(x))]
    )
    np.testing.assert_array_equal(layer.run(isa, x, skewed, threads=2), alone)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_equal_scores_prefer_the_lower_index(isa):
    x, _ = inputs(3, WIDTH)
    logits = np.array([[0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0]], np.float32)
    layer = Layer(TensorType.F32, WIDTH, HIDDEN)
    assert route(logits, SPEC)[0].tolist() == [[1, 2, 3], [0, 1, 2], [0, 1, 2]]
    expected = ReferenceOps([]).experts(x, logits, layer.reference(), SPEC)
    np.testing.assert_allclose(layer.run(isa, x, logits), expected, atol=1e-4)


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("scoring", ["softmax", "softmax_of_chosen", "sigmoid", "sparsemixer"])
def test_nan_logits_poison_their_token_only(isa, scoring):
    x, logits = inputs(4, WIDTH)
    layer = Layer(TensorType.F32, WIDTH, HIDDEN)
    spec = replace(SPEC, scoring=scoring)
    sound = layer.run(isa, x, logits, spec)
    logits[2] = np.nan
    found = layer.run(isa, x, logits, spec)
    assert np.isnan(found[2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, axis=0), np.delete(sound, 2, axis=0))


def test_experts_that_do_not_fit_are_refused():
    layer = Layer(TensorType.F32, WIDTH, HIDDEN)
    bench = Bench(ISA_LEVELS[0], 2)
    x, logits = inputs(2, WIDTH)
    source, chooser = bench.table(x), bench.table(logits)
    stacks = [
        [bench.matrix(F32, raw, *layer.shapes[name], NO_BIAS) for raw in layer.raw[name]]
        for name in ("gate", "up", "down")
    ]
    wrong = bench.matrix(F32, as_bytes(np.ones((2, WIDTH), np.float32)), 2, WIDTH, NO_BIAS)
    cases = [
        (replace(SPEC, used=7), stacks, "number of experts"),
        (replace(SPEC, groups=4), stacks, "divide"),
        (replace(SPEC, groups=3, groups_used=1), stacks, "too few"),
        (replace(SPEC, selection_bias=(1.0,)), stacks, "bias"),
        (replace(SPEC, expert_scales=(1.0,)), stacks, "a factor for each expert"),
        (replace(SPEC, scoring="none"), stacks, "scoring"),
        (SPEC, [stacks[0][:-1], *stacks[1:]], "for each expert"),
        (SPEC, [stacks[0], [*stacks[1][:-1], wrong], stacks[2]], "shape"),
    ]
    out = bench.program.buffer(WIDTH, per_row=False)
    for spec, tried, message in cases:
        with pytest.raises(ValueError, match=message):
            add_experts(bench.program, source, chooser, out, tried, spec)
    with pytest.raises(ValueError, match="fit their buffers"):
        add_experts(bench.program, chooser, source, chooser, stacks, SPEC)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_a_row_is_multiplied_by_the_sigmoid_of_its_gate(isa):
    x, _ = inputs(4, WIDTH)
    gate = np.array([[0], [-2], [90], [-200]], np.float32)
    bench = Bench(isa, 4, threads=2)
    out = bench.program.buffer(WIDTH, per_row=False)
    bench.program.gate_rows(bench.table(x), bench.table(gate), out)
    expected = ReferenceOps([]).gate_rows(x, gate)
    np.testing.assert_allclose(bench.run(4, out), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_a_head_is_multiplied_by_the_sigmoid_of_its_gate(isa):
    x, _ = inputs(4, WIDTH)
    gate = np.random.default_rng(5).normal(0, 3, (4, 4)).astype(np.float32)
    bench = Bench(isa, 4, threads=2)
    out = bench.program.buffer(WIDTH, per_row=False)
    bench.program.gate_rows(bench.table(x), bench.table(gate), out)
    by_head = x.reshape(4, 4, -1) / (1 + np.exp(-gate.astype(np.float64)))[..., None]
    np.testing.assert_allclose(bench.run(4, out), by_head.reshape(4, -1), rtol=1e-6)
    bench.program.gate_rows(bench.table(x), bench.table(gate), out, "identity")
    expected = (x.reshape(4, 4, -1) * gate[..., None]).reshape(4, -1)
    assert np.array_equal(bench.run(4, out), expected)
    with pytest.raises(ValueError, match="no such activation"):
        bench.program.gate_rows(bench.table(x), bench.table(gate), out, "silu")
    with pytest.raises(ValueError, match="do not divide its columns"):
        bench.program.gate_rows(bench.table(x), bench.table(gate[:, :3].repeat(2, 1)[:, :5]), out)
