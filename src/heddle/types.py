"""What a caller says and gets back: sampling parameters, deltas, finish reasons.

Plain data, open to every room. The contract between scheduler and executor lives in `step.py`.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from heddle.checks import check
from heddle.errors import GrammarError
from heddle.parameters import (
    MAX_INT32,
    MAX_TOP_LOGPROBS,
    Api,
    Biases,
    Instance,
    Integer,
    Members,
    Number,
    Salt,
    Strings,
    Switch,
    TokenIds,
    parameter,
    rows_of,
    with_documentation,
)

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Mapping, Sequence

    from heddle.errors import HeddleError

MAX_STOP_STRINGS = 16
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
    TOP_A = "top_a"
    XTC = "xtc"
    INFILL = "infill"
    TEMPERATURE = "temperature"


_STAGE_NAMES = {
    "typical_p": Stage.TYPICAL_P,
    "typical": Stage.TYPICAL_P,
    "temp": Stage.TEMPERATURE,
}


@with_documentation
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request turns logits into tokens. Each field is a row of the table of parameters.

    First `logit_bias` is added and what `bad_words` and `min_tokens` forbid is excluded. Then the
    samplers run in the order of `samplers`, each on what the one before left; then one draw. At
    `temperature` 0 only penalties and DRY run, and the highest logit wins, ties to the lower token
    id. Definitions and sources: docs/sampling.md.

    Raises:
        InvalidRequestError: naming the field and its value.
    """

    max_tokens: int | None = parameter(
        None,
        Integer(0, math.inf, also=-1, optional=True, note="-1 is no limit"),
        "The most tokens to generate; by default what the context leaves. With 0 the prompt alone"
        " is computed, for its log probabilities or for the prefix cache.",
        apis=Api.GENERATION | Api.MESSAGES,
        aliases={
            "max_completion_tokens": Api.CHAT,
            "n_predict": Api.GENERATION,
            "max_output_tokens": Api.RESPONSES,
        },
        native=False,
    )
    temperature: float = parameter(
        1.0, Number(0), "Logits are divided by it; 0 takes the likeliest token.", apis=Api.ALL
    )
    top_k: int = parameter(
        0,
        Integer(0, MAX_INT32, also=-1, note="0 or -1 keeps all"),
        "Keeps the k highest logits, ties to the lower id.",
        source="Fan et al. 2018, arXiv:1805.04833",
        apis=Api.ALL,
    )
    top_p: float = parameter(
        1.0,
        Number(0, 1, above=True, note="1 keeps all"),
        "Keeps the shortest run of the likeliest tokens whose mass is at least `top_p`.",
        source="Holtzman et al. 2019, arXiv:1904.09751",
        apis=Api.ALL,
    )
    min_p: float = parameter(
        0.0,
        Number(0, 1, note="0 keeps all"),
        "Keeps tokens with p ≥ `min_p` times the highest p.",
        source="Nguyen et al. 2024, arXiv:2407.01082",
    )
    top_a: float = parameter(
        0.0,
        Number(0, 1, note="0 keeps all"),
        "Keeps tokens with p ≥ `top_a` times the square of the highest p.",
        source="BlinkDL, RWKV-LM",
    )
    repetition_penalty: float = parameter(
        1.0,
        # Farther from 1 it would take logits out of float32's range.
        Number(0.01, 100, note="1 is off"),
        "Of tokens among the last `repeat_last_n` of prompt and output, positive logits are"
        " divided by it and others multiplied.",
        source="Keskar et al. 2019, arXiv:1909.05858",
        aliases={"repeat_penalty": Api.EXTENDED},
    )
    presence_penalty: float = parameter(
        0.0,
        Number(-2, 2),
        "Is taken off the logits of tokens that the output has.",
        source="OpenAI's API reference",
    )
    frequency_penalty: float = parameter(
        0.0,
        Number(-2, 2),
        "Is taken off a token's logit for each time that the output has the token.",
        source="OpenAI's API reference",
    )
    seed: int | None = parameter(
        None,
        Integer(-(2**63), 2**64 - 1, optional=True, said="a 64-bit integer"),
        "Seeds the request's own random numbers; by default a random seed.",
        source="Salmon et al. 2011",
        apis=Api.ALL,
        native=False,
    )
    stop: tuple[str, ...] = parameter(
        (),
        Strings(MAX_STOP_STRINGS, MAX_STRING_LENGTH, alone=True),
        "These end the output. The text does not have the string that ended it.",
        aliases={"stop_sequences": Api.MESSAGES},
    )
    logit_bias: Mapping[int, float] = parameter(
        {}, Biases(100), "Is added to the logits of tokens, by id.", source="OpenAI's API reference"
    )
    logprobs: int | None = parameter(
        None,
        Integer(0, MAX_TOP_LOGPROBS, optional=True),
        "How many of the likeliest tokens to report beside the chosen one, as natural logarithms"
        " under the model's raw distribution; by default not even the chosen one.",
        apis=Api.NONE,
        native=False,
    )
    ignore_eos: bool = parameter(
        False,
        Switch(),
        "Generates on after an end-of-sequence token, which may still be drawn.",
        source="vLLM",
        apis=Api.ALL,
    )
    cache_salt: str | None = parameter(
        None,
        Salt(),
        "Only requests of the same salt share prefixes, so that nobody can learn from an answer's"
        " time what others have sent. No salt is a salt of its own.",
        source="vLLM",
        apis=Api.ALL,
    )
    min_tokens: int = parameter(
        0,
        Integer(0, MAX_INT32),
        "No earlier token may end the output, and stop strings are not looked for in the text of"
        " earlier tokens. Not together with a grammar.",
        source="vLLM",
    )
    dynatemp_range: float = parameter(
        0.0,
        Number(0, 100, note="0 keeps the temperature fixed"),
        "The temperature is T - r + 2r (H / log n)^`dynatemp_exponent`, and T - r is at least 0."
        " H is the entropy of the n candidates, T `temperature` and r this range.",
        source="kalomaze, llama.cpp PR 4972",
    )
    dynatemp_exponent: float = parameter(1.0, Number(0, 100), "See `dynatemp_range`.")
    typical_p: float = parameter(
        1.0,
        Number(0, 1, above=True, note="1 keeps all"),
        "Keeps, in order of |-log p - H|, the shortest run of tokens whose mass is at least"
        " `typical_p`. H is the entropy.",
        source="Meister et al. 2022, arXiv:2202.00666",
    )
    top_n_sigma: float = parameter(
        0.0,
        Number(0, 1000, also=-1, note="0 or -1 keeps all"),
        "Keeps logits of at least the highest minus n standard deviations.",
        source="Tang et al. 2024, arXiv:2411.07641",
    )
    xtc_probability: float = parameter(
        0.0,
        Number(0, 1, note="0 is off"),
        "With this chance, all tokens with p ≥ `xtc_threshold` are dropped but the least likely of"
        " them.",
        source="p-e-w, text-generation-webui PR 6335",
    )
    xtc_threshold: float = parameter(
        0.1,
        Number(0, 1, above=True),
        "See `xtc_probability`. Above 0.5 it has no effect.",
    )
    repeat_last_n: int = parameter(
        -1,
        Integer(-1, MAX_INT32, note="-1 is the whole sequence, 0 none of it"),
        "How many of the latest tokens `repetition_penalty` looks at; the other two penalties look"
        " at the whole output.",
    )
    dry_multiplier: float = parameter(
        0.0,
        Number(0, 1000, note="0 turns DRY off"),
        "A token that would continue a repetition of n ≥ `dry_allowed_length` tokens loses"
        " `dry_multiplier` * `dry_base`^(n - `dry_allowed_length`).",
        source="p-e-w, text-generation-webui PR 5677",
    )
    dry_base: float = parameter(1.75, Number(1, 1000), "See `dry_multiplier`.")
    dry_allowed_length: int = parameter(2, Integer(1, MAX_INT32), "See `dry_multiplier`.")
    dry_penalty_last_n: int = parameter(
        -1,
        Integer(-1, MAX_INT32, note="-1 is the whole sequence, 0 none of it"),
        "How many of the latest tokens DRY searches for repetitions.",
    )
    dry_sequence_breakers: tuple[str, ...] = parameter(
        ("\n", ":", '"', "*"),
        Strings(32, 40),
        "Repetitions end at tokens that hold one of these, or begin one that the next tokens"
        " complete. A token that holds one is not penalised.",
        source="llama.cpp PR 9702",
    )
    mirostat: int = parameter(
        0,
        Integer(0, 2, step=2, said="0 (off) or 2; version 1 is not offered"),
        "Replaces all samplers that cut candidates off: keeps tokens of a surprise -log2 p of at"
        " most mu bits. Then mu falls by eta * (surprise - tau). It begins at 2 tau.",
        source="Basu et al. 2021, arXiv:2007.14966",
    )
    mirostat_tau: float = parameter(5.0, Number(0, 100), "The surprise aimed at, in bits.")
    mirostat_eta: float = parameter(0.1, Number(0, 1), "The rate of mirostat's adaptation.")
    samplers: tuple[Stage, ...] = parameter(
        (
            Stage.PENALTIES,
            Stage.DRY,
            Stage.TOP_N_SIGMA,
            Stage.TOP_K,
            Stage.TYPICAL_P,
            Stage.TOP_P,
            Stage.MIN_P,
            Stage.TOP_A,
            Stage.XTC,
            Stage.TEMPERATURE,
        ),
        Members(Stage, _STAGE_NAMES),
        "The samplers that run, in this order. A sampler that is left out does not run.",
        source="llama.cpp",
    )
    bad_words: tuple[str, ...] = parameter(
        (),
        Strings(1000, 256),
        "The last token of each spelling is excluded when the output ends with the others."
        " Spellings are the string's tokens in the middle of a text, without and with a space"
        " before; others, as by single letters, are not covered.",
        source="vLLM",
    )
    grammar: Grammar | None = parameter(
        None,
        Instance(Grammar),
        "What the output has to be. The output ends where the grammar does, or, `ignore_eos` or"
        " not, where the grammar lets it end and an end-of-sequence token is sampled.",
        apis=Api.NONE,
    )
    shown_specials: tuple[str, ...] = parameter(
        (),
        Strings(16, 64),
        "Control tokens that the text shows, as they are written. It shows no others.",
        apis=Api.NONE,
    )
    prompt_logprobs: int | None = parameter(
        None,
        Integer(0, MAX_TOP_LOGPROBS, optional=True),
        "As `logprobs`, for the tokens of the prompt, each given those before it. The whole prompt"
        " is computed then, whatever the prefix cache has.",
        apis=Api.NONE,
        native=False,
    )
    stop_token_ids: tuple[int, ...] = parameter(
        (),
        TokenIds(256),
        "These end the output too, `ignore_eos` or not. The text does not show them.",
        source="vLLM",
    )

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        for row in PARAMETERS:
            value = getattr(self, row.name)
            if value is not row.default:  # most are, and to check them all takes 0.2 ms
                put(row.name, row.kind.take(value, row.name))
        if self.max_tokens == -1:  # llama.cpp's and LM Studio's way to say so
            put("max_tokens", None)
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
            self.grammar is None or not self.min_tokens,
            "min_tokens",
            self.min_tokens,
            "0 where the output has a grammar, which says itself where it may end",
        )

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


PARAMETERS = rows_of(SamplingParams)
"""The table of sampling parameters, in the order of the fields."""


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
