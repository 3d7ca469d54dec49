"""Kinds of tokenizers that extensions read, beside byte-level BPE and SentencePiece's BPE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from heddle.doors import extensions, refer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.checkpoint import TokenizerSpec


class TokenizerKind(Protocol):
    """One kind of tokenizer."""

    def read(self, spec: TokenizerSpec, source: Mapping[str, Any], /) -> TokenizerSpec:
        """`spec` with what this kind adds to it.

        Args:
            spec: what all kinds have. Its algorithm is the kind's name.
            source: the metadata of the GGUF file, or the content of tokenizer.json.

        Raises:
            ModelFileError: a part is missing or has the wrong type.
            UnsupportedModelError: a part is not supported.
        """
        ...

    def build(self, vocabulary: Any, spec: TokenizerSpec, /) -> tuple[Any, list[bytes]]:
        """What turns plain text into ids, and the bytes that each token adds to a text.

        The first is a :class:`heddle.text.tokenizer.tokenizer.Encoder`, and `vocabulary` a
        :class:`heddle.text.tokenizer.vocabulary.Vocabulary`.

        Raises:
            ModelFileError: parts of the spec contradict each other.
        """
        ...


def kinds() -> Mapping[str, str]:
    """References of all kinds by name."""
    return {name: kind for one in extensions().values() for name, kind in one.tokenizers.items()}


def kind_of(name: object) -> TokenizerKind | None:
    """The kind with this name; None if no extension has it."""
    reference = kinds().get(name) if isinstance(name, str) else None
    kind: TokenizerKind | None = refer(reference) if reference else None
    return kind
