"""Rules of sampling in token ids: grammars, logits processors, bad sequences, rules of extensions.

They follow from a request's sampling parameters and the tokens of its model. The scheduler passes
them on and does not read them; executors apply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heddle import _native

RuleT = TypeVar("RuleT")


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class TokenSequences:
    """Non-empty token sequences. Many requests share one object; its identity is its key."""

    sequences: tuple[tuple[int, ...], ...] = ()


class GrammarState(Protocol):
    """The place of one sequence's output in its grammar. For one thread at a time."""

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        """Append `tokens` to the output, and return the mask for the next token.

        Returns:
            A bit per token id: t is allowed if bit t % 8 of byte t // 8 is set. Ids beyond the last
            bit are not allowed. An empty mask allows all tokens. If the output may end here, the
            mask allows the tokens that end it. The mask depends on all tokens so far, and not on
            how they were divided among calls.

        Raises:
            GrammarError: following the grammar costs too much.
        """
        ...

    def rewind(self, count: int) -> bool:
        """Take back the last `count` tokens. False: it cannot, and must not be used again."""
        ...


class TokenGrammar(Protocol):
    """A grammar over the tokens of a model. Requests and threads share it."""

    def begin(self) -> GrammarState:
        """The state of an empty output."""
        ...


class ProcessorState(Protocol):
    """A logits processor's place in one sequence. For one thread at a time."""

    def next_bias(self, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        """Append `tokens` to the output, and return what to add to the logits of the next token.

        Returns:
            (n,) numbers for the tokens below n, at most the vocabulary; minus infinity excludes a
            token. None adds nothing. The bias depends on the prompt and all tokens so far, and not
            on how they were divided among calls: so a request has the same output whatever shares
            its batch, and whatever was guessed.

        Raises:
            HeddleError: the request must end with this error.
        """
        ...

    def rewind(self, count: int) -> bool:
        """Take back the last `count` tokens. False: it cannot, and must not be used again."""
        ...


class LogitsProcessor(Protocol):
    """Changes the logits of a sequence, by its tokens alone. One object for each request."""

    def begin(self, prompt: Sequence[int]) -> ProcessorState:
        """The state of an empty output. May be called again, if a state cannot rewind."""
        ...


class LogitEdit(NamedTuple):
    """The change that a grammar and logits processors make to the logits of one pick.

    Attributes:
        mask: the tokens that may be picked, as :meth:`GrammarState.next_mask` returns them.
        bias: float32 in the machine's order, added to the logits of the tokens from 0 on; minus
            infinity excludes a token. Empty: nothing is added.
    """

    mask: bytes = b""
    bias: bytes = b""


NO_EDIT = LogitEdit()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TokenPieces:
    """The tokens of a vocabulary as the sampler `infill` needs them. One object for each model.

    Attributes:
        texts: the bytes of each token, empty for control tokens.
        ends: tokens that end a generation, ascending.
    """

    texts: tuple[bytes, ...]
    ends: tuple[int, ...]


class SamplerRule(Protocol):
    """A rule that an extension brings for the sampler of one sequence."""

    def apply_to(self, native: _native.SamplerParams) -> None:
        """Set the rule in the parameters of a native sampler.

        Raises:
            TypeError: the rule needs something that is not open in this process.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Sampling rules in token ids, which follow from a request's sampling parameters.

    Attributes:
        end_tokens: tokens that may not be sampled before `min_tokens`.
        bad_sequences: token sequences that may not be generated.
        breakers: sequences across which DRY's repetitions do not reach; None without DRY.
        forbidden: tokens that may never be sampled. They are not the complete vocabulary.
        grammar: the grammar of the output; None: no constraint.
        pieces: pieces of the vocabulary if the sampler `infill` runs; else None.
        extensions: rules of extensions, at most one of each class.
        processors: add their biases after those of `logit_bias` and of `extensions`.
    """

    end_tokens: tuple[int, ...] = ()
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    breakers: TokenSequences | None = None
    forbidden: tuple[int, ...] = ()
    grammar: TokenGrammar | None = None
    pieces: TokenPieces | None = None
    extensions: tuple[SamplerRule, ...] = ()
    processors: tuple[LogitsProcessor, ...] = ()

    @property
    def edits_logits(self) -> bool:
        """Whether each pick has a :class:`LogitEdit`."""
        return self.grammar is not None or bool(self.processors)

    @property
    def needs_known_output(self) -> bool:
        """Whether the host must know the output so far to sample a token.

        A step of such a sequence cannot be submitted before the step before it is collected.
        """
        return self.edits_logits or self.pieces is not None or bool(self.extensions)

    def of(self, kind: type[RuleT]) -> RuleT | None:
        """The rule of class `kind`; None: there is none."""
        return next((one for one in self.extensions if isinstance(one, kind)), None)


NO_RULES = TokenRules()
