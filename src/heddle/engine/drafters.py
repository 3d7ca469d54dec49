"""The drafters of a model, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from heddle.doors import extensions, refer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Sequence as Many

    from heddle.config import EngineConfig
    from heddle.loading.loaded_model import LoadedModel
    from heddle.scheduler.guessing import Drafter
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.speculation import Speculator
    from heddle.step import StepPlan, StepResult


class BatchDrafter(Protocol):
    """Computes guesses for the sequences of an engine. Only the engine thread uses it.

    A failure ends its guesses, and nothing else.
    """

    @property
    def name(self) -> str:
        """The name of the drafter in requests."""
        ...

    def drafter(self, sequence: Sequence) -> Drafter | None:
        """A drafter for a sequence; None after a failure, and for a sequence that is too long."""
        ...

    def ask(self, plan: StepPlan, slots: Many[Sequence | None], speculator: Speculator) -> StepPlan:
        """The plan of the large model, with what this drafter wants to know of its results."""
        ...

    def note(self, result: StepResult) -> None:
        """Take what `ask` asked for."""
        ...

    def advance(self, sequences: Iterable[Sequence | None], speculator: Speculator) -> None:
        """Make guesses for the sequences that decode, before the next step of the large model."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


def drafters(batch: BatchDrafter | None) -> Mapping[str, Callable[[Sequence], Drafter | None]]:
    """Functions that make a drafter for a sequence; None: the sequence can have no such drafter."""
    from heddle.drafting.lookup import LookupDrafter  # it loads the native module

    made: dict[str, Callable[[Sequence], Drafter | None]] = {"lookup": lambda _: LookupDrafter()}
    for extension in extensions().values():
        made |= {name: refer(reference) for name, reference in extension.drafters.items()}
    if batch is not None:
        made[batch.name] = batch.drafter
    return made


def batch_drafter_of(model: LoadedModel, config: EngineConfig) -> BatchDrafter | None:
    """The batch drafter of a model, ready to guess; None if it has none.

    Raises:
        ConfigError: a setting does not fit the model.
        HeddleError: what computes the guesses cannot be loaded.
    """
    references = [one for extension in extensions().values() for one in extension.batch_drafters]
    for reference in references:
        batch: BatchDrafter | None = refer(reference)(model, config)
        if batch is not None:
            return batch
    return None
