"""What a caller says and gets back: sampling parameters, deltas, finish reasons.

Plain data, open to every room. The contract between scheduler and executor lives in `step.py`.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.errors import HeddleError

MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_SALT_LENGTH = 256


class FinishReason(Enum):
    """Why a request ended. Values are OpenAI's `finish_reason` where it has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


def _check(condition: bool, param: str, value: object, expected: str) -> None:
    if not condition:
        raise InvalidRequestError(f"{param} must be {expected}, got {value!r}", param=param)


def _integer(value: object, param: str) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # tells by raising
    except TypeError:
        raise InvalidRequestError(
            f"{param} must be an integer, got {value!r}", param=param
        ) from None


def _number(value: object, param: str) -> float:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    _check(math.isfinite(number), param, value, "a finite number")
    return number


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request turns logits into tokens.

    The chain is: logit bias, penalties, then `top_k`, `top_p`, `min_p` on the distribution at
    temperature 1, then temperature, then one draw. `temperature == 0` is greedy: the highest logit
    after bias and penalties, ties to the lower token id.

    Attributes:
        max_tokens: most tokens to generate; None means what the context leaves.
        temperature: >= 0.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose mass reaches it; in (0, 1].
        min_p: drop tokens less likely than `min_p` times the likeliest; in [0, 1].
        repetition_penalty: in [0.01, 100]; divides positive and multiplies negative logits of
            tokens seen in the prompt or the output (Keskar et al. 2019, arXiv:1909.05858).
        presence_penalty: in [-2, 2]; subtracted once from tokens seen in the output.
        frequency_penalty: in [-2, 2]; subtracted per occurrence in the output.
        seed: seeds the request's own counter-based generator; None draws one.
        stop: strings that end the output; the string itself is not returned.
        logit_bias: token id to a value in [-100, 100] added to its logit.
        logprobs: None for none, else how many alternatives to report beside the chosen token
            (0 to 20), as natural logarithms under the model's raw distribution.
        ignore_eos: go on past end-of-sequence tokens.
        cache_salt: prefixes are shared among requests of one salt only, so that no one can learn
            from the time an answer takes what others have sent; None is a salt of its own.

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

    def __post_init__(self) -> None:
        self._take_types()
        _check(
            self.max_tokens is None or self.max_tokens >= 1,
            "max_tokens",
            self.max_tokens,
            "at least 1",
        )
        _check(self.temperature >= 0, "temperature", self.temperature, "at least 0")
        _check(0 <= self.top_k < 2**31, "top_k", self.top_k, "at least 0 (0 keeps all)")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        # Far from 1 it would take logits out of float32's range.
        _check(
            0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "in [0.01, 100]",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _check(-2 <= getattr(self, name) <= 2, name, getattr(self, name), "in [-2, 2]")
        _check(
            self.seed is None or -(2**63) <= self.seed < 2**64,
            "seed",
            self.seed,
            "a 64-bit integer",
        )
        _check(
            len(self.stop) <= MAX_STOP_STRINGS,
            "stop",
            self.stop,
            f"at most {MAX_STOP_STRINGS} strings",
        )
        _check(all(self.stop), "stop", self.stop, "non-empty strings")
        for token, bias in self.logit_bias.items():
            _check(token >= 0, "logit_bias", token, "keyed by token ids of at least 0")
            _check(-100 <= bias <= 100, "logit_bias", bias, "values in [-100, 100]")
        _check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
            "logprobs",
            self.logprobs,
            f"between 0 and {MAX_TOP_LOGPROBS}",
        )
        _check(
            self.cache_salt is None
            or (isinstance(self.cache_salt, str) and 0 < len(self.cache_salt) <= MAX_SALT_LENGTH),
            "cache_salt",
            self.cache_salt,
            f"a string of 1 to {MAX_SALT_LENGTH} characters",
        )

    def _take_types(self) -> None:
        """Make numbers of other kinds, such as NumPy's, Python's own; refuse what is none.

        A wrong type that came as far as the executor would end every request of a step.
        """
        put = partial(object.__setattr__, self)  # the class is frozen
        for name in ("max_tokens", "top_k", "seed", "logprobs"):
            if name == "top_k" or getattr(self, name) is not None:
                put(name, _integer(getattr(self, name), name))
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            put(name, _number(getattr(self, name), name))
        strings = isinstance(self.stop, (tuple, list)) and all(
            isinstance(string, str) for string in self.stop
        )
        _check(strings, "stop", self.stop, "a tuple of strings")
        put("stop", tuple(self.stop))
        bias = {
            _integer(token, "logit_bias"): _number(value, "logit_bias")
            for token, value in self.logit_bias.items()
        }
        put("logit_bias", bias)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token. `top` holds (token id, logprob) of the likeliest, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request.

    `cached_tokens` of the prompt were not computed again. That is how an answer came about and no
    part of it: it does not count when outputs are compared.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = field(default=0, compare=False)


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
    """

    text: str = ""
    tokens: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    error: HeddleError | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A finished request, whole."""

    text: str
    tokens: tuple[TokenLogprob, ...]
    finish: FinishReason
    usage: Usage
