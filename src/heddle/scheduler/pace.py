"""How many prompt tokens a step may carry while streams run: what bounds their gaps.

A running stream waits one step for its next token, and a prompt in the step makes it longer. Steps
are timed by the engine; from their times come the cost of decoding n streams and of one more prompt
token, and the prompt tokens that fit what is left of the gap.
"""

from __future__ import annotations

from collections import deque
from statistics import median

GAP = 2.6
"""Decode steps that a step with prompts may last, unless the user says otherwise.

Prompts have 60% of the time: a first token comes within twice the time of an idle engine.
"""

# Times that a cost is the median of: an interrupted step changes nothing. Fewer for prompt tokens,
# which cost more the deeper they lie. (With 15 the p99 gap on SmolLM2 was 3.5 decode steps, not
# 3.3, and the longest 4.1, not 3.6: medians of 7 rounds, 4 streams beside 1,350 prompt tokens.)
_RECENT_DECODES, _RECENT_TOKENS = 15, 5
_LEAST = 4  # prompt tokens: prompts must go on whatever the gap is
_FIRST = 16  # prompt tokens as long as nothing has been measured
# Tiles of few tokens are slower than those of prompts alone; counts until a mixed step was timed.
_MIXED = 2.0


class Pace:
    """Costs of steps so far, and what they allow. Not thread-safe.

    Args:
        max_gap: seconds that a step with running streams may last; None for GAP decode steps.
    """

    def __init__(self, max_gap: float | None = None) -> None:
        self._max_gap = max_gap
        self._decode: dict[int, deque[float]] = {}  # seconds of steps of n decodes alone
        # Seconds of one more prompt token: beside decodes, and in steps of prompts alone.
        self._mixed: deque[float] = deque(maxlen=_RECENT_TOKENS)
        self._idle: deque[float] = deque(maxlen=_RECENT_TOKENS)

    def observe(self, decodes: int, prompt_tokens: float, seconds: float) -> None:
        """Take in the time of a step that carried so many of each, or what costs as much."""
        if prompt_tokens == 0:
            self._decode.setdefault(decodes, deque(maxlen=_RECENT_DECODES)).append(seconds)
        elif decodes == 0:
            self._idle.append(seconds / prompt_tokens)
        elif (alone := self._decode_seconds(decodes)) is not None:
            self._mixed.append(max(seconds - alone, 0.0) / prompt_tokens)

    def allowance(self, decodes: int) -> int:
        """Prompt tokens that a step may carry beside so many decodes, at least _LEAST."""
        alone = self._decode_seconds(decodes)
        token = self._token_seconds()
        if alone is None or token is None:
            return _FIRST
        gap = GAP * alone if self._max_gap is None else self._max_gap
        return max(_LEAST, round((gap - alone) / token)) if token > 0.0 else _FIRST

    def _token_seconds(self) -> float | None:
        if self._mixed:
            return median(self._mixed)
        return _MIXED * median(self._idle) if self._idle else None

    def _decode_seconds(self, decodes: int) -> float | None:
        """Of a step with so many decodes, or the nearest number of them that was seen."""
        if not self._decode:
            return None
        nearest = min(self._decode, key=lambda seen: abs(seen - decodes))
        return median(self._decode[nearest])
