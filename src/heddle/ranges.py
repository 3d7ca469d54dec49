"""Which numbers sampling parameters may have: to check them, in words, and for JSON schemas."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included.

    Attributes:
        words: the range for people, what special values mean included.
        above: that `low` itself is not included.
        also: a number out of the range that is taken as well.
        step: all numbers are multiples of it.
    """

    words: str
    low: float
    high: float = math.inf
    above: bool = False
    also: float | None = None
    step: int | None = None

    def __contains__(self, number: float) -> bool:
        within = self.low < number if self.above else self.low <= number
        inside = within and number <= self.high and (self.step is None or number % self.step == 0)
        return inside or number == self.also

    def json_schema(self) -> dict[str, object]:
        """The same for a JSON schema of a number."""
        schema: dict[str, object] = {"exclusiveMinimum" if self.above else "minimum": self.low}
        if self.high != math.inf:
            schema["maximum"] = self.high
        if self.step is not None:
            schema["multipleOf"] = self.step
        return schema if self.also is None else {"anyOf": [schema, {"const": self.also}]}


_INT32 = 2**31 - 1

RANGES = {
    "max_tokens": Range("at least 0 (-1 is no limit)", 0, also=-1),
    "min_tokens": Range("at least 0", 0, _INT32),
    "temperature": Range("at least 0", 0),
    "dynatemp_range": Range("in [0, 100] (0 keeps the temperature fixed)", 0, 100),
    "dynatemp_exponent": Range("in [0, 100]", 0, 100),
    "top_k": Range("at least 0 (0 keeps all)", -1, _INT32),
    "top_p": Range("in (0, 1]", 0, 1, above=True),
    "min_p": Range("in [0, 1]", 0, 1),
    "typical_p": Range("in (0, 1]", 0, 1, above=True),
    "top_n_sigma": Range("in [0, 1000] (0 keeps all)", 0, 1000, also=-1),
    "xtc_probability": Range("in [0, 1]", 0, 1),
    "xtc_threshold": Range("in (0, 1]", 0, 1, above=True),
    # Far from 1 it would take logits out of float32's range.
    "repetition_penalty": Range("in [0.01, 100]", 0.01, 100),
    "repeat_last_n": Range("at least -1 (-1 is the whole sequence)", -1, _INT32),
    "presence_penalty": Range("in [-2, 2]", -2, 2),
    "frequency_penalty": Range("in [-2, 2]", -2, 2),
    "dry_multiplier": Range("in [0, 1000] (0 turns DRY off)", 0, 1000),
    "dry_base": Range("in [1, 1000]", 1, 1000),
    "dry_allowed_length": Range("at least 1", 1, _INT32),
    "dry_penalty_last_n": Range("at least -1 (-1 is the whole sequence)", -1, _INT32),
    "mirostat": Range("0 (off) or 2; version 1 is not offered", 0, 2, step=2),
    "mirostat_tau": Range("in [0, 100]", 0, 100),
    "mirostat_eta": Range("in [0, 1]", 0, 1),
    "seed": Range("a 64-bit integer", -(2**63), 2**64 - 1),
    "logprobs": Range(f"between 0 and {MAX_TOP_LOGPROBS}", 0, MAX_TOP_LOGPROBS),
    "prompt_logprobs": Range(f"between 0 and {MAX_TOP_LOGPROBS}", 0, MAX_TOP_LOGPROBS),
}
"""By the names of the fields of `SamplingParams`. JSON bodies have the same names, or an alias."""
