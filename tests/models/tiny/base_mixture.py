"""The common part of tiny models with a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import TinyModel

if TYPE_CHECKING:
    from models.tiny.base import Random


@dataclass(frozen=True)
class TinyMixture(TinyModel):
    """`experts` of which `used` compute a token. Their inner state has `expert_width` elements."""

    router: ClassVar[str] = "mlp.gate"
    stacks: ClassVar[tuple[str, str, str]] = (
        "mlp.experts.*.gate_proj",
        "mlp.experts.*.up_proj",
        "mlp.experts.*.down_proj",
    )
    """Names of the experts' gate, up and down; `*` stands for the number of the expert."""
    count_key: ClassVar[str] = "num_experts"
    """The key of the number of experts in config.json."""

    experts: int = 7
    used: int = 3
    expert_width: int = 20

    def config(self) -> dict[str, object]:
        return super().config() | {
            self.count_key: self.experts,
            "num_experts_per_tok": self.used,
            "moe_intermediate_size": self.expert_width,
        }

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        """Experts are stacked. The router is enlarged, so that rounding changes no choice."""
        layer = super().layer(random)
        kept = {name: values for name, values in layer.items() if not name.startswith("mlp.")}
        return kept | self.mixture(random)

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        """The weights of the feed-forward part."""
        width, hidden = self.width, self.expert_width
        shapes = ((hidden, width), (hidden, width), (width, hidden))
        found = {f"{self.router}.weight": 4 * random.matrix(self.experts, width)}
        for name, shape in zip(self.stacks, shapes, strict=True):
            matrices = [random.matrix(*shape) for _ in range(self.experts)]
            found[f"{name}.weight"] = 2 * np.stack(matrices)
        return found

    def stacked_state(self) -> dict[str, np.ndarray]:
        """Weights as `state` has them, but for experts, which are stacked."""
        return super().state()

    def state(self) -> dict[str, np.ndarray]:
        state = {}
        for name, values in self.stacked_state().items():
            if "*" not in name:
                state[name] = values
                continue
            for expert, matrix in enumerate(values):
                state[name.replace("*", str(expert))] = matrix
        return state

    def metadata(self) -> dict[str, object]:
        common = super().metadata()
        prefix = f"{common['general.architecture']}.expert"
        return common | {
            f"{prefix}_count": self.experts,
            f"{prefix}_used_count": self.used,
            f"{prefix}_feed_forward_length": self.expert_width,
        }

    def tensors(self) -> list[Tensor]:
        return [
            Tensor.of(self.gguf_name(name), self.gguf_values(name, values))
            for name, values in self.stacked_state().items()
        ]

    def gguf_name(self, name: str) -> str:
        for part, stack in zip(("gate", "up", "down"), self.stacks, strict=True):
            name = name.replace(stack, f"mlp.experts.{part}")
        return super().gguf_name(name.replace(f"{self.router}.", "mlp.router."))


GGUF_NAMES = TinyModel.gguf_names | {
    "mlp.router": "ffn_gate_inp",
    **{f"mlp.experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
}
