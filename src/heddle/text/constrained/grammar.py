"""Compiles grammars over a model's tokens to masks.

llguidance does the work (https://github.com/guidance-ai/llguidance). This module describes a
tokenizer to llguidance, bounds its work, and turns its errors into errors for callers.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary, ref

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from heddle.errors import GrammarError
from heddle.text.constrained.language import languages
from heddle.text.constrained.matching import (
    TOO_SLOW,
    CompiledGrammar,
    LateGrammar,
    reason_of,
    timed_mask,
)
from heddle.text.panics import panics_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.grammars import Grammar
    from heddle.text.constrained.language import Language, Tokens
    from heddle.token_rules import TokenGrammar

T = TypeVar("T")

_LIMITS = LLParserLimits(
    # Enough for 550 kB of schemas for 250 tools. With ten times as much, 64 kB of `a?` took 2 GB.
    initial_lexer_fuel=100_000,
    step_lexer_fuel=100_000,  # 7 ms
    step_max_items=50_000,  # 2.5 ms
    max_items_in_row=10_000,  # an object of 1,000 optional members takes 4,000
    max_lexer_states=10_000,  # 2 kB each
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""Bounds on the work for a grammar, because a step waits for its masks. The times come from
llguidance's documentation."""

_LOOK_AHEAD = 256
"""How many characters of forced text are tokenized. Heddle uses only the first token of them.
llguidance passes the complete forced text at each step; tokenizing 70 kB took 10 ms."""

_STACK = 256 << 20
"""Bytes of stack for compiling. Untouched stack costs nothing. llguidance recurses: 3 kB for each
rule of a chain, 7.5 kB for a `$ref`. With a stack of 8 MB, 31 kB of Lark ended the process. Masks
do not recurse."""

_SLICES = [
    *LLTokenizer.general_slices()[:1],
    "[a-z ]{1,30}",
    "[a-zA-Z ]{1,30}",
    *LLTokenizer.general_slices()[1:],
]
"""Patterns that divide the vocabulary into sets. A token belongs to the first pattern that matches
it. If the grammar allows all text of a pattern, the mask takes the complete set and does not test
each token: 0.01 ms instead of 0.24 ms for `[a-z ]{5,200}` (SmolLM2, 49,152 tokens). More or shorter
patterns were no faster for JSON or classes of letters. A further pattern `[a-z]{1,10}` made the
others slower, and their test failed."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Methods may be called from any thread."""

    def __init__(self, tokens: Tokens, keep: int = 32) -> None:
        """Keep the last `keep` compiled grammars, even if nothing uses them."""
        self._tokens = tokens
        self._lock = threading.Lock()
        self._alive: WeakValueDictionary[Grammar, CompiledGrammar] = WeakValueDictionary()
        self._compile_cached = lru_cache(maxsize=keep)(self._compile)

    def compile(self, grammar: Grammar) -> TokenGrammar:
        """Compile a grammar. Grammars that are in use, and the last ones compiled, are cached.

        Raises:
            GrammarError: it is wrong, can match nothing, or is too large. Names `grammar.param`.
        """
        with panics_as(partial(_refused, grammar)):
            return self._from_beginning(self._compiled(_without_beginning(grammar)), grammar)

    def prepare(self) -> None:
        """Make the data that all grammars share, so that the first grammar does not wait for it.

        llguidance holds the GIL during this call, and all streams stop: 0.14 s with the 49,152
        tokens of SmolLM2, 0.28 s with 150,000 (llguidance 1.9; 1.7 takes twice as long).
        """
        if self._tokens.eos_ids:
            with self._lock:
                _ = self._tokenizer, self._languages

    def known(self, grammar: Grammar) -> TokenGrammar | None:
        """The grammar if it is already compiled; else None."""
        compiled = self._alive.get(_without_beginning(grammar))
        return None if compiled is None else self._from_beginning(compiled, grammar)

    def _from_beginning(self, compiled: CompiledGrammar, grammar: Grammar) -> TokenGrammar:
        """`compiled`, applied from the place where `grammar` begins."""
        if grammar.beginning is None:
            return compiled
        return LateGrammar(compiled, grammar.beginning)

    def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        compiled = self._alive.get(grammar)
        if compiled is None:
            compiled = self._alive[grammar] = self._compile_cached(grammar)
        return compiled

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        if not self._tokens.eos_ids:
            raise _refused(grammar, "this model has no token that ends a text")
        with self._lock:  # only one thread makes the tokenizer
            tokenizer, language = self._tokenizer, self._languages[grammar.kind]
        try:
            source = language.source(grammar.text)
        except ValueError as error:
            raise _refused(grammar, str(error)) from error
        matcher = partial(LLMatcher, tokenizer, source, log_level=0, limits=_LIMITS)
        make = partial(_on_deep_stack, matcher)
        known = language.masks(grammar.text)
        compiled = CompiledGrammar(make, grammar.param, self._tokens, known)
        _check_beginning(grammar, compiled.matcher)
        return compiled

    @cached_property
    def _languages(self) -> Mapping[str, Language]:
        return languages(self._tokens)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        ends = sorted(self._tokens.eos_ids)
        return LLTokenizer(
            TokenizerWrapper(_LlguidanceTokenizer(self._tokens)), eos_token=ends, slices=_SLICES
        )


def _without_beginning(grammar: Grammar) -> Grammar:
    """The same grammar, applied from the first token of an output."""
    return grammar if grammar.beginning is None else replace(grammar, beginning=None)


class _LlguidanceTokenizer:
    """A tokenizer with the interface that llguidance expects.

    It does not keep the tokenizer alive. The tokenizer has the compiler, and so llguidance's data
    of the vocabulary, which refer to this object. Garbage collection does not see references that
    Rust holds, so a strong reference kept 43 MB of each unloaded model (SmolLM2). A compiled
    grammar keeps its tokenizer.
    """

    def __init__(self, tokens: Tokens) -> None:
        ids = range(tokens.vocabulary_size)
        self.bos_token_id = tokens.bos_id
        self.eos_token_id = min(tokens.eos_ids)
        self.special_token_ids = [id for id in ids if tokens.is_special(id)]
        special = frozenset(self.special_token_ids)
        # llguidance gets special tokens by name, so that a Lark grammar can refer to them.
        self.tokens = [
            tokens.token_text(id).encode() if id in special else tokens.token_bytes(id)
            for id in ids
        ]
        self._tokens = ref(tokens)

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of text that follows other text. Only the beginning of a long text is tokenized."""
        plain = text.decode() if isinstance(text, bytes) else text
        tokens = self._tokens()
        assert tokens is not None, "whoever uses a grammar keeps it, and it keeps its tokenizer"
        return tokens.encode(
            plain[:_LOOK_AHEAD], add_special=False, parse_special=False, continues=True
        )


def _on_deep_stack(task: Callable[[], T]) -> T:
    """Run `task` in a thread with `_STACK` bytes of stack. Returns its result."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(task())
        except BaseException as error:
            result.set_exception(error)

    with _starting:
        usual = threading.stack_size(_STACK)
        try:
            threading.Thread(target=run, name="heddle-grammar").start()
        finally:
            threading.stack_size(usual)
    return result.result()


_starting = threading.Lock()  # the stack size of new threads is process-wide


def _check_beginning(grammar: Grammar, matcher: LLMatcher) -> None:
    """Make the first two masks. They cost the most, and show whether the grammar can match."""
    # `matcher` itself makes the first mask: its copies share the lexer states that it finds.
    mask, slow = timed_mask(matcher, [], None)
    second = matcher if mask is None else matcher.deep_copy()
    if mask is not None and not second.is_stopped():
        _, second_slow = timed_mask(second, [first_allowed(mask)], None)
        slow = slow or second_slow
    if slow:
        raise _refused(grammar, f"{TOO_SLOW}; send a simpler one")
    for tried in (matcher, second):
        if tried.is_error():
            raise _refused(grammar, reason_of(tried))


def first_allowed(mask: bytes) -> int:
    """The first token that a mask allows."""
    place, byte = next((place, byte) for place, byte in enumerate(mask) if byte)
    return 8 * place + (byte & -byte).bit_length() - 1


def last_allowed(mask: bytes) -> int:
    """The last token that a mask allows."""
    return int.from_bytes(mask, "little").bit_length() - 1


def _refused(grammar: Grammar, reason: str) -> GrammarError:
    return GrammarError(f"{grammar.param} cannot be served: {reason}", param=grammar.param)
