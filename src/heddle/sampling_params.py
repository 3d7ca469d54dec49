"""The sampling parameters of a request: each field of `SamplingParams` is a row of one table."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping  # noqa: TC003 (codecs of messages read the annotations)
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from heddle.checks import check
from heddle.doors import extensions, refer
from heddle.errors import ConfigError, InvalidRequestError
from heddle.extended import Extended, canonical
from heddle.grammars import Grammar
from heddle.parameters import (
    MAX_INT32,
    MAX_LOGPROBS,
    MAX_TOP_LOGPROBS,
    Api,
    Biases,
    ExtensionParams,
    Instance,
    Integer,
    Members,
    Number,
    Processors,
    Salt,
    Speculation,
    Speculations,
    Strings,
    Switch,
    TokenIds,
    parameter,
    rows_of,
    with_documentation,
)

if TYPE_CHECKING:
    from heddle.parameters import Parameter

MAX_STOP_STRINGS = 16
MAX_STRING_LENGTH = 1024


class Stage(Enum):
    """A sampler of the chain. Values are the names in llama.cpp's `samplers`."""

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
_STAGE_LETTERS = {
    "e": Stage.PENALTIES,
    "d": Stage.DRY,
    "s": Stage.TOP_N_SIGMA,
    "k": Stage.TOP_K,
    "y": Stage.TYPICAL_P,
    "p": Stage.TOP_P,
    "m": Stage.MIN_P,
    "x": Stage.XTC,
    "i": Stage.INFILL,
    "t": Stage.TEMPERATURE,
}
"""llama.cpp's letters of samplers. `top_a` is not a sampler of llama.cpp."""


@with_documentation
@dataclass(frozen=True, slots=True)
class SamplingParams(Extended):
    """How one request turns logits into tokens. Each field is a row of the table of parameters.

    The sampler adds `logit_bias` and the biases of extensions to the logits. It excludes the
    tokens that `bad_words` and `min_tokens` forbid. Then the samplers run in the order of
    `samplers`. Each sampler gets the candidates of the sampler before it. One draw selects a token
    from the last candidates. At `temperature` 0 only penalties and DRY run, and the highest logit
    wins. Among equal logits the lowest token id wins. Definitions and sources:
    docs/reference/sampling.md. `extensions` has the parameters of extensions.

    Raises:
        InvalidRequestError: names the field and its value.
    """

    max_tokens: int | None = parameter(
        None,
        Integer(0, math.inf, extra=-1, optional=True, note="-1 is no limit"),
        "Limit on generated tokens; by default the context is the limit. 0 computes only the"
        " prompt, for its log probabilities or for the prefix cache.",
        apis=Api.GENERATION | Api.MESSAGES,
        aliases={
            "max_completion_tokens": Api.CHAT,
            "n_predict": Api.GENERATION,
            "max_output_tokens": Api.RESPONSES,
            "num_predict": Api.OLLAMA,
        },
        native=False,
    )
    temperature: float = parameter(
        1.0, Number(0), "Divisor of the logits; 0 selects the likeliest token.", apis=Api.ALL
    )
    top_k: int = parameter(
        0,
        Integer(0, MAX_INT32, extra=-1, note="0 or -1 keeps all"),
        "Keeps the k highest logits; among equal logits, the lowest token ids.",
        source="Fan et al. 2018, arXiv:1805.04833",
        apis=Api.ALL,
    )
    top_p: float = parameter(
        1.0,
        Number(0, 1, excludes_low=True, note="1 keeps all"),
        "Keeps the fewest likeliest tokens whose total probability is at least `top_p`.",
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
        # A penalty farther from 1 could move logits out of float32's range.
        Number(0.01, 100, note="1 is off"),
        "Penalty for tokens among the last `repeat_last_n` tokens of prompt and output. It divides"
        " positive logits and multiplies all others.",
        source="Keskar et al. 2019, arXiv:1909.05858",
        aliases={"repeat_penalty": Api.EXTENDED},
    )
    presence_penalty: float = parameter(
        0.0,
        Number(-2, 2),
        "Subtracted from the logit of each token that the output contains.",
        source="OpenAI's API reference",
    )
    frequency_penalty: float = parameter(
        0.0,
        Number(-2, 2),
        "Subtracted from a token's logit once for each time that the output contains the token.",
        source="OpenAI's API reference",
    )
    seed: int | None = parameter(
        None,
        Integer(-(2**63), 2**64 - 1, optional=True, range_text="a 64-bit integer"),
        "Seed of the request's random numbers; by default a random seed.",
        source="Salmon et al. 2011",
        apis=Api.ALL,
        native=False,
    )
    stop: tuple[str, ...] = parameter(
        (),
        Strings(MAX_STOP_STRINGS, MAX_STRING_LENGTH, or_one=True),
        "Strings that end the output. The text excludes the string that matched.",
        aliases={"stop_sequences": Api.MESSAGES},
    )
    logit_bias: Mapping[int, float] = parameter(
        {},
        Biases(100),
        "Added to the logits of the given token ids. Minus infinity excludes a token; in JSON it is"
        " `false`. Requests may write a text in place of an id: the value holds for each token of"
        " the text. The values of a token are added up; a sum out of range becomes the end of the"
        " range. They may also send a list of pairs.",
        source="OpenAI's API reference",
    )
    logits_processors: Mapping[str, Mapping[str, Any]] = parameter(
        {},
        Processors(8),
        "[Logits processors](../concepts/extensions.md#logits-processors) of extensions, which run"
        " in this order after the other biases.",
        source="Heddle",
        apis=Api.ALL,
        native=False,
    )
    logprobs: int | None = parameter(
        None,
        Integer(0, MAX_LOGPROBS, optional=True),
        "Number of likeliest tokens to report beside each sampled token. Log probabilities are"
        " natural logarithms under the model's raw distribution. By default no token is reported,"
        " not even the sampled token.",
        apis=Api.NONE,
        native=False,
    )
    post_sampling_probs: bool = parameter(
        False,
        Switch(),
        "Whether reported probabilities are those among the candidates that the samplers left. At"
        " temperature 0, the sampled token is the only one.",
        source="llama.cpp",
        apis=Api.NONE,
    )
    ignore_eos: bool = parameter(
        False,
        Switch(),
        "Continue after an end-of-sequence token. The sampler can still draw the token.",
        source="vLLM",
        apis=Api.ALL,
    )
    cache_salt: str | None = parameter(
        None,
        Salt(),
        "Separates prefix caches: only requests with the same salt share prefixes. So response"
        " times do not reveal the prompts of others. Requests without a salt share prefixes with"
        " each other.",
        source="vLLM",
        apis=Api.ALL,
    )
    priority: int = parameter(
        0,
        Integer(-MAX_INT32, MAX_INT32, range_text="integers"),
        "Class of the request; lower numbers run earlier, and running requests of later classes"
        " give way, with the same results. A server refuses numbers below its `--min-priority`.",
        source="vLLM",
        apis=Api.ALL,
        native=False,
    )
    deadline: float = parameter(
        0.0,
        Number(0, 86_400, note="0 is no deadline"),
        "Seconds after which the request ends with an error, wherever it is: in the queue, between"
        " two tokens, or while its model is loaded again after a failure.",
        source="Heddle",
        apis=Api.ALL,
        native=False,
    )
    id_slot: int = parameter(
        -1,
        Integer(-1, MAX_INT32, note="-1 is any slot"),
        "Slot that the request gets if this slot is free; else it gets another one. Answers are the"
        " same in each slot. `POST /slots/{id}` saves the prefix of the slot's last request.",
        source="llama.cpp",
        apis=Api.GENERATION | Api.RESPONSES,
        native=False,
    )
    speculation: Speculation | None = parameter(
        None,
        Speculations(),
        "Whether steps guess tokens of the output and check them: `auto` where that is faster,"
        " `off`, or an object that names a `drafter` and perhaps a `length`. The output is the"
        " same. By default the server's `--speculation` decides.",
        apis=Api.ALL,
        native=False,
    )
    min_tokens: int = parameter(
        0,
        Integer(0, MAX_INT32),
        "Fewest tokens of the output. No earlier token can end the output, and stop strings do not"
        " match in the text of earlier tokens. Excludes a grammar.",
        source="vLLM",
    )
    dynatemp_range: float = parameter(
        0.0,
        Number(0, 100, note="0 keeps the temperature fixed"),
        "Range r of a temperature that depends on the entropy H of the n candidates:"
        " L + (T + r - L) (H / log n)^`dynatemp_exponent`. T is `temperature`; L is the larger of"
        " 0 and T - r.",
        source="kalomaze, llama.cpp PR 4972",
    )
    dynatemp_exponent: float = parameter(1.0, Number(0, 100), "See `dynatemp_range`.")
    typical_p: float = parameter(
        1.0,
        Number(0, 1, excludes_low=True, note="1 keeps all"),
        "Orders tokens by |-log p - H|, lowest first, and keeps the fewest first tokens whose total"
        " probability is at least `typical_p`. H is the entropy.",
        source="Meister et al. 2022, arXiv:2202.00666",
    )
    top_n_sigma: float = parameter(
        0.0,
        Number(0, 1000, extra=-1, note="0 or -1 keeps all"),
        "Keeps logits that are at most n standard deviations below the highest logit.",
        source="Tang et al. 2024, arXiv:2411.07641",
    )
    xtc_probability: float = parameter(
        0.0,
        Number(0, 1, note="0 is off"),
        "Probability that XTC removes tokens at a position. XTC removes all tokens with"
        " p ≥ `xtc_threshold` except the least likely of these tokens.",
        source="p-e-w, text-generation-webui PR 6335",
    )
    xtc_threshold: float = parameter(
        0.1,
        Number(0, 1, excludes_low=True),
        "See `xtc_probability`. Above 0.5 it has no effect.",
    )
    repeat_last_n: int = parameter(
        -1,
        Integer(-1, MAX_INT32, note="-1 is the whole sequence, 0 none of it"),
        "Number of latest tokens that `repetition_penalty` examines. The other two penalties"
        " examine the whole output.",
    )
    dry_multiplier: float = parameter(
        0.0,
        Number(0, 1000, note="0 turns DRY off"),
        "Strength of DRY. If a token would continue a repetition of n ≥ `dry_allowed_length`"
        " tokens, DRY subtracts `dry_multiplier` * `dry_base`^(n - `dry_allowed_length`) from its"
        " logit.",
        source="p-e-w, text-generation-webui PR 5677",
    )
    dry_base: float = parameter(1.75, Number(1, 1000), "See `dry_multiplier`.")
    dry_allowed_length: int = parameter(2, Integer(1, MAX_INT32), "See `dry_multiplier`.")
    dry_penalty_last_n: int = parameter(
        -1,
        Integer(-1, MAX_INT32, note="-1 is the whole sequence, 0 none of it"),
        "Number of latest tokens that DRY searches for repetitions.",
    )
    dry_sequence_breakers: tuple[str, ...] = parameter(
        ("\n", ":", '"', "*"),
        Strings(32, 40),
        "Strings at which repetitions end. A repetition ends at a token that contains a breaker,"
        " and at a token that begins a breaker if the next tokens complete the breaker. DRY does"
        " not penalise tokens that contain a breaker.",
        source="llama.cpp PR 9702",
    )
    mirostat: int = parameter(
        0,
        Integer(0, 2, step=2, range_text="0 (off) or 2; version 1 is not offered"),
        "Mirostat replaces all samplers that remove candidates. It keeps tokens whose surprise,"
        " -log2 p, is at most mu bits. After each token, mu falls by eta * (surprise - tau). mu"
        " starts at 2 tau.",
        source="Basu et al. 2021, arXiv:2007.14966",
    )
    mirostat_tau: float = parameter(
        5.0, Number(0, 100), "Target surprise tau of mirostat, in bits."
    )
    mirostat_eta: float = parameter(0.1, Number(0, 1), "Learning rate eta of mirostat.")
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
        Members(Stage, _STAGE_NAMES, _STAGE_LETTERS),
        "The samplers that run, in this order. Other samplers do not run. A string of llama.cpp's"
        " letters also names samplers: `edskypmxit`.",
        source="llama.cpp",
    )
    bad_words: tuple[str, ...] = parameter(
        (),
        Strings(1000, 256),
        "Strings to keep out of the output. If the output ends with all tokens of a spelling except"
        " the last, the sampler excludes the last token. A string has two spellings: its tokens in"
        " the middle of a text, with and without a space before the string. Other spellings, such"
        " as by single letters, are not covered.",
        source="vLLM",
    )
    grammar: Grammar | None = parameter(
        None,
        Instance(Grammar),
        "Grammar of the output. The output ends where the grammar ends. It also ends where the"
        " grammar allows an end and the sampler draws an end-of-sequence token, even with"
        " `ignore_eos`.",
        apis=Api.NONE,
    )
    shown_specials: tuple[str, ...] = parameter(
        (),
        Strings(16, 64),
        "Control tokens that appear in the text. The text excludes all other control tokens.",
        apis=Api.NONE,
    )
    prompt_logprobs: int | None = parameter(
        None,
        Integer(0, MAX_TOP_LOGPROBS, optional=True),
        "Number of likeliest tokens to report beside each prompt token, as for `logprobs`. Each"
        " prompt token is scored after the tokens before it. The engine then computes the whole"
        " prompt, even if the prefix cache holds a part of it.",
        apis=Api.NONE,
        native=False,
    )
    stop_token_ids: tuple[int, ...] = parameter(
        (),
        TokenIds(256),
        "Tokens that end the output, even with `ignore_eos`. The text excludes them.",
        source="vLLM",
    )

    extensions: tuple[ExtensionParams, ...] = ()

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # the class is frozen
        for row in PARAMETERS:
            value = getattr(self, row.name)
            if value is row.default:
                continue  # as most are; checking all rows takes 0.2 ms
            is_default = row.default == {} and type(value) is dict and not value
            put(row.name, {} if is_default else row.kind.take(value, row.name))
        if self.extensions:
            put("extensions", canonical(self.extensions, ExtensionParams, InvalidRequestError))
        if self.max_tokens == -1:  # llama.cpp and LM Studio write "no limit" so
            put("max_tokens", None)
        if self.bad_words:
            check(
                not any(word.isspace() for word in self.bad_words),
                "bad_words",
                self.bad_words,
                "strings with at least one character that is not whitespace",
            )
        if self.min_tokens:
            check(
                self.max_tokens is None or self.min_tokens <= self.max_tokens,
                "min_tokens",
                self.min_tokens,
                f"at most max_tokens ({self.max_tokens})",
            )
            check(
                self.grammar is None,
                "min_tokens",
                self.min_tokens,
                "0 for a request with a grammar, because the grammar decides where the output may"
                " end",
            )

    @classmethod
    def by_name(cls, **values: Any) -> SamplingParams:
        """The parameters with these values. Those of extensions are named like the others."""
        own, brought = dict[str, Any](), dict[type[ExtensionParams], dict[str, Any]]()
        for name, value in values.items():
            kind = brought_parameters().get(name)
            (own if kind is None else brought.setdefault(kind, {}))[name] = value
        if not brought:
            return cls(**own)
        parts = (kind(**given) for kind, given in brought.items())
        return cls(**own | {"extensions": (*own.get("extensions", ()), *parts)})

    def value(self, name: str) -> object:
        """The value of a parameter, perhaps one of an extension."""
        kind = brought_parameters().get(name)
        return getattr(self if kind is None else self.of(kind), name)

    @property
    def needs_known_output(self) -> bool:
        """Whether the host must know the output so far to sample a token: mirostat."""
        return self.mirostat != 0

    def with_seed(self, seed: int | None) -> SamplingParams:
        """A copy with another seed, a 64-bit integer. The copy shares `logit_bias`, which may be
        large."""
        changed = copy.copy(self)
        object.__setattr__(changed, "seed", seed)  # the class is frozen
        return changed

    def for_another_choice(self, seed: int | None) -> SamplingParams:
        """A copy for one more choice of the same prompt. It does not score the prompt again."""
        changed = self.with_seed(seed)
        object.__setattr__(changed, "prompt_logprobs", None)
        return changed


PARAMETERS = rows_of(SamplingParams)
"""The table of the core's sampling parameters, in the order of the fields."""


@cache
def brought_parameters() -> Mapping[str, type[ExtensionParams]]:
    """The classes with parameters that extensions bring, by the name of each parameter.

    Raises:
        ConfigError: two parameters have one name.
    """
    found: dict[str, type[ExtensionParams]] = {}
    for reference in (one for extension in extensions().values() for one in extension.parameters):
        kind = refer(reference)
        for row in rows_of(kind):
            if row.name in found or row.name in SamplingParams.__dataclass_fields__:
                raise ConfigError(
                    f"2 sampling parameters are named {row.name!r}, and one is of {reference};"
                    " uninstall its package"
                )
            found[row.name] = kind
    return found


@cache
def all_parameters() -> tuple[Parameter, ...]:
    """The table of sampling parameters: the core's, then those of extensions."""
    kinds = dict.fromkeys(brought_parameters().values())
    return (*PARAMETERS, *(row for kind in kinds for row in rows_of(kind)))
