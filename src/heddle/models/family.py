"""A family: the function that builds its models, and the names that its files use.

The file of a family ends with a value `FAMILY`. That value is the whole registration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.decoder import Decoder
    from heddle.weights.gguf.names import GGUFNames
    from heddle.weights.huggingface.names import FolderNames
    from heddle.weights.hyperparameters import Hyperparameters


class Build(Protocol):
    """Describes a model. It reads no tensor and allocates nothing."""

    def __call__(self, hyperparameters: Hyperparameters, context: int, /) -> Decoder:
        """The decoder with these hyperparameters.

        The decoder is a frozen description: its shape, and its layers of blocks. Its `load` claims
        tensors by their canonical names (`heddle.weights.checkpoint` lists them), each with the
        shape that it must have. Its `forward` computes hidden states (tokens, width), and its
        `logits` turns some of their rows into (rows, vocabulary).

        Args:
            hyperparameters: values by canonical name. Their methods check type and range.
            context: most tokens of a sequence as it will be served; 0: the model's own limit. Some
                scalings of positions depend on it.

        Raises:
            ModelFileError: a hyperparameter is missing, has a wrong type, or contradicts another.
            UnsupportedModelError: the value of a hyperparameter is not supported.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models with one forward pass.

    Attributes:
        build: makes the description of a model from its hyperparameters.
        gguf: values of `general.architecture` in GGUF files, each with the names that are
            particular to its files.
        hf: values of `model_type` in `config.json`, each with the names that are particular to
            its folders.
        near: names of like architectures that are not served, each with what Heddle lacks and
            which architecture is the nearest.
    """

    build: Build
    gguf: Mapping[str, GGUFNames]
    hf: Mapping[str, FolderNames]
    near: Mapping[str, str] = field(default_factory=dict)
