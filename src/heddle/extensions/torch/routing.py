"""The experts that compute a token, on torch tensors; see `heddle.models.ops.ExpertSpec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.extensions.torch.functions import exp, sigmoid, softmax, total

if TYPE_CHECKING:
    from heddle.extensions.torch.constants import Constants
    from heddle.models.ops import ExpertSpec


def choose(
    logits: torch.Tensor, spec: ExpertSpec, constants: Constants
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token in ascending order, and their weights: (T, used) each."""
    scores = logits
    if spec.scoring == "softmax":
        scores = softmax(logits)
    elif spec.scoring == "sigmoid":
        scores = sigmoid(logits)
    values = scores
    if spec.selection_bias:
        values = scores + constants.floats(spec.selection_bias, logits.device)
    if spec.groups_used < spec.groups:
        values = _only_best_groups(values, spec)
    chosen = _best(values, spec.used).sort(-1).values
    weights = scores.gather(-1, chosen)
    if spec.scoring == "softmax_of_chosen":
        weights = softmax(weights)
    elif spec.scoring == "sparsemixer":
        weights = _shares_with_near(logits, chosen)
    elif spec.normalised:
        floor = 1e-20 if spec.scoring == "sigmoid" else 0.0  # DeepSeek-V3
        weights = weights / (total(weights) + floor)
    weights = weights * spec.scale
    if spec.expert_scales:
        scales = constants.floats(spec.expert_scales, logits.device)
        weights = weights * scales[chosen]
    return chosen, weights


def _shares_with_near(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The weight of each chosen expert: its share among itself and lower ones that are near it."""
    weights = torch.empty_like(logits)
    order = logits.gather(-1, chosen).sort(dim=-1, descending=True, stable=True).indices
    left = logits
    for experts in chosen.gather(-1, order).split(1, -1):
        best = logits.gather(-1, experts)
        is_far = (best - logits) / logits.abs().maximum(best) > 0.02
        powers = torch.where(is_far, 0.0, exp(left - best))
        weights = weights.scatter(-1, experts, 1.0 / total(powers))
        left = left.scatter(-1, experts, -torch.inf)
    return weights.gather(-1, chosen)


def _only_best_groups(values: torch.Tensor, spec: ExpertSpec) -> torch.Tensor:
    """The values, with -infinity for experts of groups that are not used."""
    grouped = values.reshape(len(values), spec.groups, -1)
    best = total(grouped.sort(-1).values[..., -spec.group_best :])[..., 0]
    kept = torch.zeros_like(best, dtype=torch.bool)
    kept.scatter_(-1, _best(best, spec.groups_used), True)
    return torch.where(kept[..., None], grouped, -torch.inf).reshape(values.shape)


def _best(values: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the highest values; equal values prefer the lower index."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]
