"""Compiles grammars over a model's tokens: a schema, a regular expression, choices or Lark to
masks.

llguidance does the work (https://github.com/guidance-ai/llguidance). This module describes a
tokenizer to llguidance, bounds its work, and turns its errors into errors for callers.
"""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from time import thread_time
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakValueDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from heddle.errors import GrammarError
from heddle.text.constrained.gbnf.lark import lark
from heddle.text.constrained.structural_tag import structural_tag_source
from heddle.text.tokenizer.detokenizer import Detokenizer
from heddle.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from heddle.step import TokenGrammar
    from heddle.types import Beginning

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

_MASK_SECONDS = 0.5
"""Processor time that one mask may take. Most take 0.05 ms. The limits above do not bound the time:
the first row of 20,000 alternatives takes 1.1 s, because the cost grows with their square."""

_LOOK_AHEAD = 256
"""How many characters of forced text are tokenized. Heddle uses only the first token of them.
llguidance passes the complete forced text at each step; tokenizing 70 kB took 10 ms."""

_STACK = 256 << 20
"""Bytes of stack for compiling. Untouched stack costs nothing. llguidance recurses: 3 kB for each
rule of a chain, 7.5 kB for a `$ref`. With a stack of 8 MB, 31 kB of Lark ended the process. Masks
do not recurse."""

JSON_SPACE = r" ?|\n[ \t]{0,32}"
"""Space between JSON's tokens: none, one space, or a new line and its indentation. Without a bound
a small model may generate spaces without end."""

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


class Tokens(Protocol):
    """The methods of a tokenizer that grammars use; see
    `heddle.text.tokenizer.tokenizer.Tokenizer`."""

    @property
    def vocabulary_size(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> Collection[int]: ...
    def token_bytes(self, id: int, /) -> bytes: ...
    def token_text(self, id: int, /) -> str: ...
    def is_special(self, id: int, /) -> bool: ...
    def control_id(self, text: str, /) -> int | None: ...
    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        continues: bool = False,
    ) -> list[int]: ...


class MatcherState:
    """One output's place in a grammar; see `heddle.step.GrammarState`.

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

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        """See `heddle.step.GrammarState`. The GIL is released while the mask is made."""
        self._tokens += tokens
        began = thread_time()
        mask = _mask(self._matcher, tokens)
        if _takes_long(began):
            raise self._refused(_TOO_SLOW)
        if mask is None:
            self._matcher = self._grammar.renew(self._shared)
            mask = _mask(self._matcher, self._tokens)
        if mask is None:
            raise self._refused(_reason(self._matcher))
        return mask

    def rewind(self, count: int) -> bool:
        """See `heddle.step.GrammarState`."""
        del self._tokens[len(self._tokens) - count :]
        return self._matcher.rollback(count)

    def _refused(self, reason: str) -> GrammarError:
        param = self._grammar.param
        return GrammarError(
            f"{param} failed during generation: {reason}; send a simpler grammar", param=param
        )


class CompiledGrammar:
    """A grammar over one model's tokens; see `heddle.step.TokenGrammar`.

    Attributes:
        param: the field of the request that has the grammar.
        matcher: a matcher at the beginning of an output. Each output gets a copy.
    """

    def __init__(self, make: Callable[[], LLMatcher], param: str) -> None:
        """`make` returns matchers that share nothing."""
        self._make = make
        self.param = param
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
    """One output's place in a grammar that begins later; see `heddle.step.GrammarState`.

    The grammar applies after a mark in the output. The token that completes the mark may contain
    more text. This object tokenizes that text separately and feeds it to the grammar. If the text
    already violates the grammar, the output stays unconstrained.
    """

    def __init__(self, grammar: LateGrammar) -> None:
        self._grammar = grammar
        self._watch = grammar.beginning.watch()
        self._text = Detokenizer(grammar.tokens, shown=grammar.shown)
        self._state: MatcherState | None = None
        self._free = False

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        """See `heddle.step.GrammarState`."""
        for place, token in enumerate(tokens):
            if self._state is not None:
                return self._state.next_mask(tokens[place:])
            if not self._free:
                self._look(self._text.push(token))
        return b"" if self._state is None else self._state.next_mask(())

    def rewind(self, count: int) -> bool:
        """See `heddle.step.GrammarState`. The text and its watch cannot go back."""
        return False

    def _look(self, text: str) -> None:
        begun = self._watch(text)
        if begun is None:
            return
        state, encode = self._grammar.compiled.begin(), self._grammar.tokens.encode
        ids = encode(begun, add_special=False, parse_special=False, continues=True)
        try:
            state.next_mask(ids)
            self._state = state
        except GrammarError:
            self._free = True


class LateGrammar:
    """A grammar that applies from a later place in an output; see `heddle.step.TokenGrammar`.

    Attributes:
        compiled: the grammar.
        beginning: detects where the grammar begins.
        tokens: the model's tokenizer.
        shown: control tokens that `beginning` sees as text.
    """

    def __init__(self, compiled: CompiledGrammar, beginning: Beginning, tokens: Tokens) -> None:
        self.compiled = compiled
        self.beginning = beginning
        self.tokens = tokens
        ids = (tokens.control_id(text) for text in beginning.specials)
        self.shown = [id for id in ids if id is not None]

    def begin(self) -> LateState:
        """A state for one output."""
        return LateState(self)


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
        return self._from_beginning(self._compiled(_without_beginning(grammar)), grammar)

    def prepare(self) -> None:
        """Make the data that all grammars share, so that the first grammar does not wait for it.

        llguidance holds the GIL during this call, and all streams stop: 0.24 s with the 49,152
        tokens of SmolLM2, 0.9 s with the 151,936 tokens of Qwen2.5.
        """
        if self._tokens.eos_ids:
            with self._lock:
                _ = self._tokenizer

    def known(self, grammar: Grammar) -> TokenGrammar | None:
        """The grammar if it is already compiled; else None."""
        compiled = self._alive.get(_without_beginning(grammar))
        return None if compiled is None else self._from_beginning(compiled, grammar)

    def _from_beginning(self, compiled: CompiledGrammar, grammar: Grammar) -> TokenGrammar:
        """`compiled`, applied from the place where `grammar` begins."""
        if grammar.beginning is None:
            return compiled
        return LateGrammar(compiled, grammar.beginning, self._tokens)

    def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        compiled = self._alive.get(grammar)
        if compiled is None:
            compiled = self._alive[grammar] = self._compile_cached(grammar)
        return compiled

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        if not self._tokens.eos_ids:
            raise _refused(grammar, "this model has no token that ends a text")
        with self._lock:  # only one thread makes the tokenizer
            tokenizer = self._tokenizer
        try:
            source = _source(grammar, self._tokens)
        except ValueError as error:
            raise _refused(grammar, str(error)) from error
        matcher = partial(LLMatcher, tokenizer, source, log_level=0, limits=_LIMITS)
        compiled = CompiledGrammar(partial(_on_deep_stack, matcher), grammar.param)
        _check_beginning(grammar, compiled.matcher)
        return compiled

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
    """A tokenizer with the interface that llguidance expects."""

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
        self._encode = tokens.encode

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of text that follows other text. Only the beginning of a long text is tokenized."""
        plain = text.decode() if isinstance(text, bytes) else text
        return self._encode(
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


def _source(grammar: Grammar, tokens: Tokens) -> str:
    """The grammar in llguidance's format, for a model with these tokens.

    Raises:
        ValueError: a schema or a list of choices is not valid JSON, the list is wrong, or a
            grammar in another form than Lark is wrong.
    """
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return LLMatcher.grammar_from_json_schema(
            grammar.text, overrides={"whitespace_pattern": JSON_SPACE}
        )
    if grammar.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind is GrammarKind.CHOICE:
        choices = json.loads(grammar.text)
        if not choices or not all(isinstance(one, str) and one for one in choices):
            raise ValueError("it must be a list of non-empty strings")
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))
    if grammar.kind is GrammarKind.STRUCTURAL_TAG:
        return structural_tag_source(grammar.text, {"whitespace_pattern": JSON_SPACE}, tokens)
    text = lark(grammar.text, tokens) if grammar.kind is GrammarKind.GBNF else grammar.text
    return LLMatcher.grammar_from_lark(text)


def _check_beginning(grammar: Grammar, matcher: LLMatcher) -> None:
    """Make the first two masks. They cost the most, and show whether the grammar can match."""
    second = matcher
    began = thread_time()
    if not matcher.is_error():
        # `matcher` itself makes the first mask: its copies share the lexer states that it finds.
        mask = matcher.compute_bitmask()
        second = matcher.deep_copy()
        if not second.is_stopped():
            second.consume_token(first_allowed(mask))
            second.compute_bitmask()
    if _takes_long(began):
        raise _refused(grammar, f"{_TOO_SLOW}; send a simpler one")
    for tried in (matcher, second):
        if tried.is_error():
            raise _refused(grammar, _reason(tried))


def _takes_long(began: float) -> bool:
    return thread_time() - began > _MASK_SECONDS


_TOO_SLOW = f"finding the tokens that may come next takes more than {_MASK_SECONDS} s"


def first_allowed(mask: bytes) -> int:
    """The first token that a mask allows."""
    place, byte = next((place, byte) for place, byte in enumerate(mask) if byte)
    return 8 * place + (byte & -byte).bit_length() - 1


def last_allowed(mask: bytes) -> int:
    """The last token that a mask allows."""
    return int.from_bytes(mask, "little").bit_length() - 1


def _mask(matcher: LLMatcher, tokens: Sequence[int]) -> bytes | None:
    """The mask after `tokens`; None if the matcher cannot make it."""
    if not matcher.is_error():
        matcher.consume_tokens(list(tokens))
    mask = None if matcher.is_error() else matcher.compute_bitmask()
    return None if matcher.is_error() else mask


def _reason(matcher: LLMatcher) -> str:
    """The first line of llguidance's error. For a pattern, also the error of its regex parser."""
    said = matcher.get_error()
    reason = said.partition("\n")[0]
    if parser := re.search("^error: (.{1,200})", said, re.MULTILINE):
        reason = reason.removesuffix("regex parse error:") + parser[1]
    return "it can match nothing" if reason.startswith("NoExtension") else reason


def _refused(grammar: Grammar, reason: str) -> GrammarError:
    return GrammarError(f"{grammar.param} cannot be served: {reason}", param=grammar.param)
