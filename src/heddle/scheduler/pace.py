"""Times of recent steps, and the bound on the next ones that follows from them.

A running stream waits one step for its next token, and prompt tokens make this step longer. The
engine measures each step. From these times the pace learns two costs: the cost of decoding n
streams, and the cost of one more prompt token. It allows as many prompt tokens as fit into the rest
of the gap. The rate of steps says when a place in the queue is free (`room.py`).
"""

from __future__ import annotations

from collections import deque
from statistics import median

GAP = 2.6
"""Longest step with prompt tokens, in decode steps, unless the user sets a gap.

Prompts get 60% of the time: a first token comes within twice the time of an idle engine.
"""

# A cost is the median of this many recent times, so one interrupted step does not change it. The
# number is lower for prompt tokens, because a token costs more at a later position. (With 15
# instead of 5, the p99 gap on SmolLM2 was 3.5 decode steps, not 3.3, and the longest gap 4.1, not
# 3.6: medians of 7 rounds, 4 streams beside 1,350 prompt tokens.)
_RECENT_DECODES, _RECENT_TOKENS = 15, 5
_LEAST_TOKENS = 4  # prompt tokens that every step allows, so that prefill never stops
_FIRST_TOKENS = 16  # prompt tokens that a step allows before any step was timed
# Cost of a prompt token beside decodes, relative to its cost in a step of only prompts: tiles of
# few tokens are slower. Used until a step with both was measured.
_MIXED_COST = 2.0
# Fewest tokens of a step of prompts alone whose cost for one token bounds the cost beside decodes:
# in a shorter one, much of the time goes into reading the weights, which decodes read anyway.
_LONG_STEP = 64
_RECENT_GUESSES = 9
_GUESS_COST = 0.25  # of a guess, relative to a decode's share of its step, before one was measured
_REFRESH = 64  # steps with guesses, after which one step has none

_DECAY = 0.98
"""Weight of the last step in a rate relative to the newest one: about 50 steps count."""


class Pace:
    """The costs of recent steps, and the prompt tokens that they allow. Not thread-safe.

    Args:
        max_gap: longest step in seconds while streams run; None for GAP decode steps.
        prefer_decode: streams keep their pace, and prompts beside them get the fewest tokens.

    Attributes:
        prompts: the part of the time beside decodes that prompts get. Eyes may take the rest.
    """

    def __init__(self, max_gap: float | None = None, *, prefer_decode: bool = False) -> None:
        self._max_gap = max_gap
        self._prefer_decode = prefer_decode
        self.prompts = 1.0
        self._decode: dict[int, deque[float]] = {}  # n -> seconds of steps with n decodes only
        # n -> k -> seconds that k guesses added to steps with n decodes
        self._guess: dict[int, dict[int, deque[float]]] = {}
        self._since: dict[int, int] = {}  # n -> steps with guesses since the last without
        # Seconds for one prompt token: in steps with decodes, and in steps of prompts alone.
        self._mixed: deque[float] = deque(maxlen=_RECENT_TOKENS)
        self._idle: deque[float] = deque(maxlen=_RECENT_TOKENS)
        self._long: deque[float] = deque(maxlen=_RECENT_TOKENS)  # of these, in long steps

    def observe(self, decodes: int, prompt_tokens: float, seconds: float, guesses: int = 0) -> None:
        """Record the time of a step with `decodes` decodes and `prompt_tokens` prompt tokens.

        `prompt_tokens` is a cost: a scored token counts more than 1. A step with `guesses` has no
        prompt tokens.
        """
        if not guesses and prompt_tokens == 0:
            self._decode.setdefault(decodes, deque(maxlen=_RECENT_DECODES)).append(seconds)
            self._since[decodes] = 0
            return
        if not guesses and decodes == 0:
            self._idle.append(seconds / prompt_tokens)
            if prompt_tokens >= _LONG_STEP:
                self._long.append(seconds / prompt_tokens)
            return
        alone = self._decode_seconds(decodes)
        if guesses:
            self._since[decodes] = self._since.get(decodes, 0) + 1
            if alone is not None:
                added = self._guess.setdefault(decodes, {})
                recent = added.setdefault(guesses, deque(maxlen=_RECENT_GUESSES))
                recent.append(max(seconds - alone, 0.0))
        elif alone is not None:
            self._mixed.append(max(seconds - alone, 0.0) / prompt_tokens)

    def guess_seconds(self, decodes: int, guesses: float) -> float | None:
        """Expected time of a step with decodes and guesses, or an expected number of them.

        None if nothing is known, or if the next step should have no guesses so that the time
        without them stays known: steps become longer as sequences grow.
        """
        if decodes not in self._decode or self._since.get(decodes, 0) >= _REFRESH:
            return None
        return median(self._decode[decodes]) + self._added_seconds(decodes, guesses)

    def _added_seconds(self, decodes: int, guesses: float) -> float:
        """Seconds that guesses add to a step: on the line between the nearest numbers measured.

        After the last number, a guess costs as much as those before it. But one step tries at most
        twice as many as were measured: nobody knows where tiles of more tokens become slow.
        """
        known = self._guess.get(decodes, {})
        low, at_low = 0, 0.0
        for high in sorted(known):
            at_high = max(median(known[high]), at_low)
            if high >= guesses:
                return at_low + (at_high - at_low) * (guesses - low) / (high - low)
            low, at_low = high, at_high
        alone = median(self._decode[decodes])
        if guesses > 2 * (low + 1):
            return at_low + guesses * alone
        return at_low + (guesses - low) * (at_low / low if low else _GUESS_COST * alone / decodes)

    def longest_step(self, alone: float) -> float:
        """Longest step, in seconds, if the decodes alone take `alone` seconds."""
        return GAP * alone if self._max_gap is None else self._max_gap

    def spare_seconds(self, decodes: int) -> float | None:
        """How much longer than its decodes a step may take; None: no such step was measured."""
        alone = self._decode_seconds(decodes)
        return None if alone is None else max(self.longest_step(alone) - alone, 0.0)

    def allowance(self, decodes: int) -> int:
        """Number of prompt tokens that a step allows beside `decodes` decodes; at least 4."""
        if self._prefer_decode:
            return _LEAST_TOKENS
        alone = self._decode_seconds(decodes)
        token = self._token_seconds()
        if alone is None or token is None:
            return _FIRST_TOKENS
        gap = self.prompts * (self.longest_step(alone) - alone)
        return max(_LEAST_TOKENS, round(gap / token)) if token > 0.0 else _FIRST_TOKENS

    def expected_seconds(self, decodes: int, prompt_tokens: float) -> float | None:
        """Expected time of a step; None if no such step was measured."""
        alone = self._decode_seconds(decodes) if decodes else 0.0
        token = self._token_seconds() if prompt_tokens else 0.0
        return None if alone is None or token is None else alone + prompt_tokens * token

    def _token_seconds(self) -> float | None:
        if self._mixed:
            # Where the decodes of a step were measured as slower than they are, the rest of a step
            # looks cheap: one step then took 57 prompt tokens where 16 were right.
            return max(median(self._mixed), min(self._long, default=0.0))
        return _MIXED_COST * median(self._idle) if self._idle else None

    def _decode_seconds(self, decodes: int) -> float | None:
        """Seconds of a step with only `decodes` decodes, or with the nearest measured number."""
        if not self._decode:
            return None
        nearest = min(self._decode, key=lambda seen: abs(seen - decodes))
        return median(self._decode[nearest])


class Rate:
    """Tokens per second of recent steps, and the usual length of an output. Not thread-safe.

    Attributes:
        output: mean number of tokens of recent outputs; None before the first output has ended.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self.output: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """Record a step that computed `tokens` tokens in `seconds`."""
        self._tokens = _DECAY * self._tokens + tokens
        self._seconds = _DECAY * self._seconds + seconds

    def observe_output(self, tokens: int) -> None:
        """Record the number of tokens of an output that has ended."""
        self.output = tokens if self.output is None else 0.9 * self.output + 0.1 * tokens

    @property
    def tokens_per_second(self) -> float:
        """Prompt and output tokens that steps compute per second; 0.0 before any step was timed."""
        return self._tokens / self._seconds if self._seconds else 0.0
