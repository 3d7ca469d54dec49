"""What a caller says and gets back: sampling parameters, deltas, finish reasons.

Plain data, open to every room. The contract between scheduler and executor lives in `step.py`.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from heddle.checks import check, check_salt, integer, number
from heddle.errors import GrammarError
from heddle.ranges import RANGES

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Mapping, Sequence

    from heddle.errors import HeddleError

MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 256
MAX_BREAKERS = 32
MAX_BAD_WORDS = 1000
MAX_STRING_LENGTH = 1024
MAX_GRAMMAR_LENGTH = 131_072


class FinishReason(Enum):
    """Why a request ended. Values are OpenAI's `finish_reason` where it has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class GrammarKind(Enum):
    """What the text of a :class:`Grammar` is."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"


class Beginning(Protocol):
    """Finds the place in an output from which on it has to be what a grammar says."""

    @property
    def specials(self) -> Sequence[str]:
        """Control tokens that are to be looked at as text."""
        ...

    def watch(self) -> Callable[[str], str | None]:
        """For one output: takes its text piece by piece, and gives what comes after the place.

        Until there is such a place, it gives None.
        """
        ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the whole output has to be. Cut off only by `max_tokens`, a stop string or a cancel.

    Attributes:
        kind: what `text` is.
        text: a JSON schema; a regular expression in Rust's syntax, for the whole output; a JSON
            list of strings, one of which is the output; or a grammar in llguidance's form of Lark.
            At most 131,072 characters.
        param: the request's field that it came from, for errors.
        beginning: finds where the output has to begin to be it; None for its beginning. What
            precedes that place is free, and so is an output that has none.

    Raises:
        GrammarError: the text is too long, or is not Unicode.
    """

    kind: GrammarKind
    text: str
    param: str = "grammar"
    beginning: Beginning | None = None

    def __post_init__(self) -> None:
        if len(self.text) > MAX_GRAMMAR_LENGTH:
            raise GrammarError(
                f"{self.param} has {len(self.text)} characters; at most {MAX_GRAMMAR_LENGTH} are"
                " taken, so send a smaller one",
                param=self.param,
            )
        if any("\ud800" <= character <= "\udfff" for character in self.text):
            raise GrammarError(f"{self.param} has half a surrogate pair in it", param=self.param)

    @classmethod
    def json_schema(cls, schema: Mapping[str, object], param: str = "grammar") -> Grammar:
        """JSON that `schema` allows."""
        return cls(GrammarKind.JSON_SCHEMA, json.dumps(schema), param)

    @classmethod
    def regex(cls, pattern: str, param: str = "grammar") -> Grammar:
        """Text that `pattern` matches from its beginning to its end."""
        return cls(GrammarKind.REGEX, pattern, param)

    @classmethod
    def choice(cls, choices: Sequence[str], param: str = "grammar") -> Grammar:
        """One of the strings."""
        return cls(GrammarKind.CHOICE, json.dumps(list(choices)), param)

    @classmethod
    def lark(cls, grammar: str, param: str = "grammar") -> Grammar:
        """Text of the rule `start`."""
        return cls(GrammarKind.LARK, grammar, param)


class Stage(Enum):
    """A sampler of the chain. Values are the names that llama.cpp's `samplers` has for them."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYPICAL_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    INFILL = "infill"
    TEMPERATURE = "temperature"


_STAGE_NAMES = {stage.value: stage for stage in Stage} | {
    "typical_p": Stage.TYPICAL_P,
    "typical": Stage.TYPICAL_P,
    "temp": Stage.TEMPERATURE,
}

_INTEGERS = (
    "max_tokens",
    "min_tokens",
    "top_k",
    "repeat_last_n",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "seed",
    "logprobs",
    "prompt_logprobs",
)

_OPTIONAL = frozenset({"max_tokens", "seed", "logprobs", "prompt_logprobs"})
"""Numbers that may be None."""

# Names of fields that hold strings, how many they hold at most, and how many characters in each.
_STRINGS = {
    "stop": (MAX_STOP_STRINGS, MAX_STRING_LENGTH),
    "dry_sequence_breakers": (MAX_BREAKERS, 40),
    "bad_words": (MAX_BAD_WORDS, 256),
    "shown_specials": (16, 64),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request turns logits into tokens.

    First `logit_bias` is added and what `bad_words` and `min_tokens` forbid is excluded. Then the
    samplers run in the order of `samplers`, each on what the one before left; then one draw. At
    `temperature` 0 only penalties and DRY run, and the highest logit wins, ties to the lower token
    id. Definitions and sources: docs/sampling.md.

    Attributes:
        max_tokens: most tokens to generate; None or -1 means what the context leaves. With 0 the
            prompt is computed, for its log probabilities or for the prefix cache.
        min_tokens: tokens to generate before one that ends the output may be sampled; stop strings
            are not looked for in their text.
        temperature: >= 0.
        dynatemp_range: the temperature moves by up to this much around `temperature`, with the
            entropy of the candidates; 0 keeps it fixed.
        dynatemp_exponent: of the normalised entropy that the temperature follows.
        top_k: keep the k most likely tokens; 0 keeps all, as does -1.
        top_p: keep the smallest set of most likely tokens whose mass reaches it; in (0, 1].
        min_p: drop tokens less likely than `min_p` times the likeliest; in [0, 1].
        typical_p: keep the smallest set of tokens whose surprise is closest to the entropy and
            whose mass reaches it; in (0, 1].
        top_n_sigma: keep tokens whose logit is at most so many standard deviations below the
            highest; 0 keeps all, as does -1.
        xtc_probability: chance, per token, that all but the least likely of the tokens that have
            at least `xtc_threshold` are dropped; in [0, 1].
        xtc_threshold: a probability in (0, 1]; above 0.5 it can have no effect.
        repetition_penalty: in [0.01, 100]; divides positive and multiplies negative logits of
            tokens seen in the prompt or the output (Keskar et al. 2019, arXiv:1909.05858).
        repeat_last_n: how many of the latest tokens `repetition_penalty` looks at; -1 for all, 0
            for none.
        presence_penalty: in [-2, 2]; subtracted once from tokens seen in the output.
        frequency_penalty: in [-2, 2]; subtracted per occurrence in the output.
        dry_multiplier: penalty of a token that would make a repeated run of tokens longer than
            `dry_allowed_length`; times `dry_base` for every token that the run is longer still. 0
            turns DRY off.
        dry_base: see there; at least 1.
        dry_allowed_length: longest run that may be repeated without a penalty; at least 1.
        dry_penalty_last_n: how many of the latest tokens are searched; -1 for all, 0 for none.
        dry_sequence_breakers: strings that a repeated run does not reach across.
        mirostat: 2 keeps the surprise of tokens near `mirostat_tau` in place of all samplers that
            cut candidates off; 0 for off.
        mirostat_tau: the surprise aimed at, in bits.
        mirostat_eta: how fast the bound on surprise follows; in [0, 1].
        samplers: the samplers that run, in this order; names of :class:`Stage` are taken too. One
            that is left out does not run.
        seed: seeds the request's own counter-based generator; None draws one.
        stop: strings that end the output, of 1 to 1024 characters; the string itself is not
            returned.
        stop_token_ids: up to 256 tokens that end the output, `ignore_eos` or not; the text does not
            show them.
        bad_words: strings whose tokens are not generated in a row, with and without a space before.
        shown_specials: control tokens that the text shows, as they are written; of others it shows
            nothing.
        logit_bias: token id to a value in [-100, 100] added to its logit.
        logprobs: None for none, else how many alternatives to report beside the chosen token
            (0 to 20), as natural logarithms under the model's raw distribution.
        prompt_logprobs: the same for the tokens of the prompt, each given those before it. All of
            it is computed then, whatever the prefix cache has.
        ignore_eos: go on past end-of-sequence tokens.
        cache_salt: prefixes are shared among requests of one salt only, so that no one can learn
            from the time an answer takes what others have sent; None is a salt of its own.
        grammar: what the output has to be; it ends where the grammar does, or, `ignore_eos` or
            not, where the grammar lets it and an end-of-sequence token is sampled. Not together
            with `min_tokens`.

    Raises:
        InvalidRequestError: naming the field and its value.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None
    min_tokens: int = 0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = -1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: tuple[Stage, ...] = (
        Stage.PENALTIES,
        Stage.DRY,
        Stage.TOP_N_SIGMA,
        Stage.TOP_K,
        Stage.TYPICAL_P,
        Stage.TOP_P,
        Stage.MIN_P,
        Stage.XTC,
        Stage.TEMPERATURE,
    )
    bad_words: tuple[str, ...] = ()
    grammar: Grammar | None = None
    shown_specials: tuple[str, ...] = ()
    prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._take_types()
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            absent = value is None and name in _OPTIONAL
            check(absent or value in allowed, name, value, allowed.words)
        for name, (most, longest) in _STRINGS.items():
            strings = getattr(self, name)
            check(len(strings) <= most, name, strings, f"at most {most} strings")
            check(
                all(0 < len(string) <= longest for string in strings),
                name,
                strings,
                f"strings of 1 to {longest} characters",
            )
        check(
            len(self.stop_token_ids) <= MAX_STOP_TOKENS,
            "stop_token_ids",
            self.stop_token_ids,
            f"at most {MAX_STOP_TOKENS} token ids",
        )
        check(
            not any(word.isspace() for word in self.bad_words),
            "bad_words",
            self.bad_words,
            "strings with more than spaces",
        )
        check(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"at most max_tokens ({self.max_tokens})",
        )
        check(
            self.grammar is None or isinstance(self.grammar, Grammar),
            "grammar",
            self.grammar,
            "a Grammar",
        )
        check(
            self.grammar is None or not self.min_tokens,
            "min_tokens",
            self.min_tokens,
            "0 where the output has a grammar, which says itself where it may end",
        )
        check(
            len(set(self.samplers)) == len(self.samplers),
            "samplers",
            [stage.value for stage in self.samplers],
            "a list that names each sampler once",
        )
        for token, bias in self.logit_bias.items():
            check(token >= 0, "logit_bias", token, "keyed by token ids of at least 0")
            check(-100 <= bias <= 100, "logit_bias", bias, "values in [-100, 100]")
        check_salt(self.cache_salt)

    def with_seed(self, seed: int | None) -> SamplingParams:
        """The same with another seed, a 64-bit integer. The bias is shared: it may be large."""
        changed = copy.copy(self)
        object.__setattr__(changed, "seed", seed)  # the class is frozen
        return changed

    def for_another_choice(self, seed: int | None) -> SamplingParams:
        """The same for one more output of a prompt, about which nothing more is asked."""
        changed = self.with_seed(seed)
        object.__setattr__(changed, "prompt_logprobs", None)
        return changed

    def _take_types(self) -> None:
        """Make numbers of other kinds, such as NumPy's, Python's own; refuse what is none.

        A wrong type that came as far as the executor would end every request of a step.
        """
        put = partial(object.__setattr__, self)  # the class is frozen
        for name in RANGES:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            put(name, integer(value, name) if name in _INTEGERS else number(value, name))
        for name in _STRINGS:
            given = getattr(self, name)
            strings = isinstance(given, (tuple, list)) and all(isinstance(s, str) for s in given)
            check(strings, name, given, "a tuple of strings")
            put(name, tuple(given))
        if self.max_tokens == -1:  # llama.cpp's and LM Studio's way to say so
            put("max_tokens", None)
        put("samplers", _stages(self.samplers))
        ids = self.stop_token_ids
        check(isinstance(ids, (tuple, list)), "stop_token_ids", ids, "a tuple of token ids")
        put("stop_token_ids", tuple(integer(id, "stop_token_ids") for id in ids))
        bias = {
            integer(token, "logit_bias"): number(value, "logit_bias")
            for token, value in self.logit_bias.items()
        }
        put("logit_bias", bias)


def _stages(given: object) -> tuple[Stage, ...]:
    check(isinstance(given, (tuple, list)), "samplers", given, "a list of names")
    assert isinstance(given, (tuple, list))
    stages = []
    for name in given:
        stage = name if isinstance(name, Stage) else _STAGE_NAMES.get(str(name))
        known = ", ".join(stage.value for stage in Stage)
        check(stage is not None, "samplers", name, f"made of {known}")
        assert stage is not None
        stages.append(stage)
    return tuple(stages)


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """One token of a prompt, given those before it.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability.
        rank: 1 for the likeliest token of the vocabulary; ties go to the lower id.
        top: (token id, logprob) of the likeliest, best first.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token. `top` holds (token id, logprob) of the likeliest, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and times of one request.

    `cached_tokens` of the prompt were not computed again. That is how an answer came about and no
    part of it, as are the times: they do not count when outputs are compared.

    Attributes:
        prompt_seconds: from the first step that carried it to its first token.
        completion_seconds: from its first token to its last.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = field(default=0, compare=False)
    prompt_seconds: float = field(default=0.0, compare=False)
    completion_seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one request.

    Attributes:
        text: new text, whole characters only; may be empty while a character or a possible stop
            string is held back.
        tokens: the tokens behind this step (with logprobs only when asked for); their text may
            come in a later delta.
        finish: set on the last delta, exactly once per request.
        error: set when `finish` is ERROR.
        usage: set on the last delta.
        stop: on the last delta, the stop string that ended the output, if one did.
        prompt_logprobs: of further tokens of the prompt, if asked for; of the first token, which
            follows nothing, None. All come before the first token of the output.
        embedding: on the last delta of a request for one, float32 of the model's width and of
            length 1.
    """

    text: str = ""
    tokens: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    error: HeddleError | None = None
    usage: Usage | None = None
    stop: str | None = None
    prompt_logprobs: tuple[PromptLogprob | None, ...] = ()
    embedding: array[float] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A finished request, whole.

    Attributes:
        stop: the stop string that ended it, if one did.
        prompt_logprobs: of the prompt's tokens, if asked for; of the first one None.
    """

    text: str
    tokens: tuple[TokenLogprob, ...]
    finish: FinishReason
    usage: Usage
    stop: str | None = None
    prompt_logprobs: tuple[PromptLogprob | None, ...] | None = None

    @classmethod
    def of(cls, deltas: Sequence[Delta]) -> Output:
        """All that the deltas of a request say, of which the last one is no error."""
        last = deltas[-1]
        assert last.finish is not None
        assert last.usage is not None
        prompt = tuple(one for delta in deltas for one in delta.prompt_logprobs)
        return cls(
            text="".join(delta.text for delta in deltas),
            tokens=tuple(token for delta in deltas for token in delta.tokens),
            finish=last.finish,
            usage=last.usage,
            stop=last.stop,
            prompt_logprobs=prompt or None,
        )
