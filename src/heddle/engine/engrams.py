"""What the engram tables of a request mean for one model."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from heddle.sampling_params import EngramForm
from heddle.step import EngramBias

if TYPE_CHECKING:
    from heddle.engine.loading import LoadedModel
    from heddle.engram.library import EngramLibrary
    from heddle.sampling_params import SamplingParams


class ModelEngrams:
    """The engram tables that requests to one model may name. Any thread may call all methods.

    Attributes:
        library: the tables, of all models of the process.
    """

    def __init__(self, library: EngramLibrary, model: LoadedModel) -> None:
        self.library = library
        self._model = model

    @property
    def model(self) -> str:
        """The model's name, for errors."""
        return self._model.info.id

    @cached_property
    def fingerprint(self) -> bytes:
        """The fingerprint of the model's vocabulary. Computing it takes 0.1 s."""
        from heddle.engram.format import vocabulary_fingerprint  # it loads numpy

        return vocabulary_fingerprint(self._model.tokenizer.vocabulary_entries())

    def bias(self, params: SamplingParams) -> EngramBias | None:
        """The bias that `params` ask for; None if they name no table.

        Raises:
            InvalidRequestError: a table is unknown, or was built for another vocabulary.
        """
        if not params.engram:
            return None
        tables = tuple((self.library.find(one.name, self), one.weight) for one in params.engram)
        alpha = self.library.alpha if params.engram_alpha is None else params.engram_alpha
        opening, closing = ((), ()) if params.engram_in_reasoning else self._marks
        literal = params.engram_form is EngramForm.LITERAL
        return EngramBias(tables, alpha, literal, opening, closing)

    @cached_property
    def _marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens of the marks of reasoning; empty for a model without."""
        template = self._model.template
        if template is None or template.dialect.marks is None:
            return (), ()
        encode = self._model.tokenizer.encode
        marks = template.dialect.marks
        opening, closing = (
            tuple(encode(mark, add_special=False, continues=True)) for mark in marks
        )
        return opening, closing
