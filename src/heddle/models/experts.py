"""Mixture of experts: the block, and which layers of a model have one.

Shazeer et al. 2017 (arXiv:1701.06538). Shared experts, which compute every token: Dai et al. 2024
(arXiv:2401.06066).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle.models.feed_forward import dense_mlp, has_gates
from heddle.models.ops import ExpertSpec, ExpertWeights

if TYPE_CHECKING:
    from heddle.models.base import Sizes
    from heddle.models.blocks import FeedForward
    from heddle.models.ops import Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_SCORINGS = ("softmax", "softmax_of_chosen", "sigmoid", "sqrt_softplus", "sparsemixer")


@dataclass(frozen=True, slots=True)
class MixtureWeights(Generic[W]):
    """`spec` has the checkpoint's selection bias and factors on the weights of experts.

    `shared_gate` is None without such a gate. `latent` and `result` are None if experts read the
    hidden state itself.
    """

    router: W
    experts: ExpertWeights[W]
    spec: ExpertSpec
    shared: Any
    shared_gate: W | None
    latent: W | None
    result: W | None


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """Feed-forward layer of experts, of which a router chooses some for each token.

    Attributes:
        width: width of the hidden state.
        hidden: width of an expert's inner state.
        spec: how experts are chosen.
        shared: an expert that computes every token; its result is added. None: no such expert.
        shared_gated: whether the shared expert's result is multiplied by sigmoid(shared_gate(x)).
        latent: elements of the latent that the chosen experts read and return. One matrix makes it
            from x, and one makes the result from it. 0: they read x itself.
    """

    width: int
    hidden: int
    spec: ExpertSpec
    shared: FeedForward | None = None
    shared_gated: bool = False
    latent: int = 0

    def load(self, loader: Loader[W], name: str) -> MixtureWeights[W]:
        """Claim the tensors under `name`, with biases if the checkpoint has them."""
        count, spec, bias = self.spec.count, self.spec, f"{name}.selection_bias"
        if loader.has(bias):
            spec = replace(spec, selection_bias=loader.constants(bias, count))
        if loader.has(f"{name}.expert_scales"):
            spec = replace(spec, expert_scales=loader.constants(f"{name}.expert_scales", count))
        width, latent, hidden = self.latent or self.width, self.latent, self.hidden
        stacks, gated = f"{name}.experts", has_gates(spec.activation)
        return MixtureWeights(
            router=loader.linear(f"{name}.router", count, self.width),
            experts=ExpertWeights(
                gate=loader.experts(f"{stacks}.gate", count, hidden, width) if gated else None,
                up=loader.experts(f"{stacks}.up", count, hidden, width),
                down=loader.experts(f"{stacks}.down", count, width, hidden),
            ),
            spec=spec,
            shared=self.shared.load(loader, f"{name}.shared") if self.shared else None,
            shared_gate=(
                loader.linear(f"{name}.shared_gate", 1, self.width) if self.shared_gated else None
            ),
            latent=loader.linear(f"{name}.latent", latent, self.width) if latent else None,
            result=loader.linear(f"{name}.result", self.width, latent) if latent else None,
        )

    def forward(self, ops: Ops[A, W], weights: MixtureWeights[W], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        logits = ops.linear(x, weights.router)
        y = x if weights.latent is None else ops.linear(x, weights.latent)
        y = ops.experts(y, logits, weights.experts, weights.spec)
        if weights.result is not None:
            y = ops.linear(y, weights.result)
        if self.shared is None:
            return y
        shared = self.shared.forward(ops, weights.shared, x)
        if weights.shared_gate is not None:
            shared = ops.gate_rows(shared, ops.linear(x, weights.shared_gate))
        return ops.add(y, shared)


def feed_forwards(
    hyperparameters: Hyperparameters,
    sizes: Sizes,
    activation: str,
    *,
    scoring: str = "softmax",
    normalised: bool = True,
    shared_gated: bool = False,
) -> list[FeedForward]:
    """The feed-forward part of each layer: dense, or a mixture of experts where the model has it.

    The checkpoint may say `scoring` and `normalised` itself.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: the scoring is not supported.
    """
    read, layers, width = hyperparameters, sizes.shape.layers, sizes.shape.width
    dense = dense_mlp(width, sizes.mlp_width, activation)
    if not read.count("experts"):
        return [dense] * layers
    spec = expert_spec(read, scoring, activation, normalised=normalised)
    hidden = read.integer("expert_width", sizes.mlp_width)
    shared = read.count("shared_expert_width", read.count("shared_experts") * hidden)
    mixture = MixtureOfExperts(
        width,
        hidden,
        spec,
        dense_mlp(width, shared, activation) if shared else None,
        shared_gated and shared > 0,
        read.count("expert_latent"),
    )
    return [mixture if has_experts else dense for has_experts in _expert_layers(read, layers)]


def expert_spec(
    hyperparameters: Hyperparameters, scoring: str, activation: str, *, normalised: bool
) -> ExpertSpec:
    """How experts are chosen. The checkpoint may say `scoring` and `normalised` itself.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: the scoring is not supported.
    """
    read = hyperparameters
    count, used = read.integer("experts"), read.integer("experts_used")
    if used > count:
        read.fail("experts_used", f"is {used}, but a layer has {count} experts")
    groups = read.count("expert_groups") or 1
    groups_used = read.count("expert_groups_used") or groups
    if count % groups:
        read.fail("expert_groups", f"is {groups}, which does not divide the {count} experts")
    if groups_used > groups or count // groups * groups_used < used:
        read.fail(
            "expert_groups_used",
            f"is {groups_used}: of {groups} groups with {count // groups} experts each, a token"
            f" must get {used} experts",
        )
    return ExpertSpec(
        count,
        used,
        read.choice("expert_scoring", _SCORINGS, scoring),
        normalised=read.flag("expert_weights_normalised", normalised),
        scale=read.number("expert_weights_scale", 1.0),
        groups=groups,
        groups_used=groups_used,
        group_best=read.integer("expert_group_best", 2),
        activation=activation,
    )


def _expert_layers(hyperparameters: Hyperparameters, layers: int) -> list[bool]:
    """Whether each layer has experts."""
    listed = hyperparameters.get("expert_layers")
    if listed is None:
        dense = hyperparameters.count("dense_layers")
        return [layer >= dense for layer in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers:
        hyperparameters.fail("expert_layers", f"must have {layers} entries, got {listed!r}")
    return [bool(one) for one in listed]
