"""The place of an output in a compiled grammar, and the masks of tokens that may come next."""

from __future__ import annotations

import re
from time import thread_time
from typing import TYPE_CHECKING

from heddle.errors import GrammarError
from heddle.text.panics import panics_as
from heddle.text.tokenizer.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llguidance import LLMatcher

    from heddle.grammars import Beginning
    from heddle.text.constrained.language import KnownMasks, Tokens

MASK_SECONDS = 0.5
"""Processor time that one mask may take. Most take 0.05 ms. The limits above do not bound the time:
the first row of 20,000 alternatives takes 1.1 s, because the cost grows with their square."""


class MatcherState:
    """One output's place in a grammar; see `heddle.token_rules.GrammarState`.

    Copies of a matcher share the lexer's states and the limit on their number. So one output can
    use up the limit for another output. If the shared matcher cannot make a mask, this object tries
    again with a matcher that shares nothing. A failure therefore does not depend on other outputs
    of the same grammar.
    """

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._shared = grammar.matcher
        self._matcher = self._shared.deep_copy()
        self._tokens: list[int] = []
        self._known = None if grammar.known is None else grammar.known.begin()

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        """See `heddle.token_rules.GrammarState`. The GIL is released while the mask is made."""
        self._tokens += tokens
        known = None if self._known is None else self._known.mask_after(tokens)
        with panics_as(self._refused):
            mask, slow = timed_mask(self._matcher, tokens, known)
        if slow:
            raise self._refused(TOO_SLOW)
        if mask is None:
            with panics_as(self._refused):
                self._matcher = self._grammar.renew(self._shared)
                mask, _ = timed_mask(self._matcher, self._tokens, known)
        if mask is None:
            raise self._refused(reason_of(self._matcher))
        if self._known is not None and known is None:
            self._known.keep(mask)
        return mask

    def rewind(self, count: int) -> bool:
        """See `heddle.token_rules.GrammarState`."""
        del self._tokens[len(self._tokens) - count :]
        if self._known is not None:
            self._known.rewind(count)
        try:
            with panics_as(self._refused):
                return self._matcher.rollback(count)
        except GrammarError:
            return False  # the caller begins again

    def _refused(self, reason: str) -> GrammarError:
        param = self._grammar.param
        return GrammarError(
            f"{param} failed during generation: {reason}; send a simpler grammar", param=param
        )


class CompiledGrammar:
    """A grammar over one model's tokens; see `heddle.token_rules.TokenGrammar`.

    Attributes:
        param: the field of the request that has the grammar.
        tokens: the model's tokenizer. The matchers use it, and do not keep it alive.
        matcher: a matcher at the beginning of an output. Each output gets a copy.
        known: masks that need not be made again; None if llguidance makes all.
    """

    def __init__(
        self,
        make: Callable[[], LLMatcher],
        param: str,
        tokens: Tokens,
        known: KnownMasks | None = None,
    ) -> None:
        """`make` returns matchers that share nothing."""
        self._make = make
        self.param = param
        self.tokens = tokens
        self.known = known
        self.matcher = make()

    def begin(self) -> MatcherState:
        """A state for one output."""
        return MatcherState(self)

    def renew(self, spent: LLMatcher) -> LLMatcher:
        """Return a matcher that shares nothing. Replaces `self.matcher` if it is still `spent`."""
        if self.matcher is spent:
            self.matcher = self._make()
        return self._make()


class LateState:
    """One output's place in a grammar that begins later; see `heddle.token_rules.GrammarState`.

    The grammar applies after a mark in the output. The token that completes the mark may contain
    more text. This object tokenizes that text separately and feeds it to the grammar. If the text
    already violates the grammar, the output stays unconstrained.
    """

    def __init__(self, grammar: LateGrammar) -> None:
        self._grammar = grammar
        self._watch = grammar.beginning.watch()
        self._text = Detokenizer(grammar.compiled.tokens, shown=grammar.shown)
        self._state: MatcherState | None = None
        self._free = False

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        """See `heddle.token_rules.GrammarState`."""
        for place, token in enumerate(tokens):
            if self._state is not None:
                return self._state.next_mask(tokens[place:])
            if not self._free:
                self._look(self._text.push(token))
        return b"" if self._state is None else self._state.next_mask(())

    def rewind(self, count: int) -> bool:
        """See `heddle.token_rules.GrammarState`. The text and its watch cannot go back."""
        return False

    def _look(self, text: str) -> None:
        begun = self._watch(text)
        if begun is None:
            return
        compiled = self._grammar.compiled
        state = compiled.begin()
        ids = compiled.tokens.encode(begun, add_special=False, parse_special=False, continues=True)
        try:
            state.next_mask(ids)
            self._state = state
        except GrammarError:
            self._free = True


class LateGrammar:
    """A `heddle.token_rules.TokenGrammar` that applies from a later place in an output.

    Attributes:
        compiled: the grammar.
        beginning: detects where the grammar begins.
        shown: control tokens that `beginning` sees as text.
    """

    def __init__(self, compiled: CompiledGrammar, beginning: Beginning) -> None:
        self.compiled = compiled
        self.beginning = beginning
        ids = (compiled.tokens.control_id(text) for text in beginning.specials)
        self.shown = [id for id in ids if id is not None]

    def begin(self) -> LateState:
        """A state for one output."""
        return LateState(self)


TOO_SLOW = f"finding the tokens that may come next takes more than {MASK_SECONDS} s"


def timed_mask(
    matcher: LLMatcher, tokens: Iterable[int], known: bytes | None
) -> tuple[bytes | None, bool]:
    """The mask after `tokens`, None if the matcher cannot make it, and whether it took too long.

    `known` is this mask. Nothing here makes a container while the time is taken: that may begin a
    garbage collection, which takes over 0.5 s where a program has many objects.
    """
    following = iter(tokens)
    began = thread_time()
    for token in following:
        matcher.consume_token(token)
    mask = known
    if mask is None and not matcher.is_error():
        mask = matcher.compute_bitmask()
    slow = thread_time() - began > MASK_SECONDS
    return None if matcher.is_error() else mask, slow


def reason_of(matcher: LLMatcher) -> str:
    """The first line of llguidance's error. For a pattern, also the error of its regex parser."""
    said = matcher.get_error()
    reason = said.partition("\n")[0]
    if parser := re.search("^error: (.{1,200})", said, re.MULTILINE):
        reason = reason.removesuffix("regex parse error:") + parser[1]
    return "it can match nothing" if reason.startswith("NoExtension") else reason
