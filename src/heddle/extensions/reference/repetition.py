"""Repetitions (DRY) and forbidden tokens, from the tokens so far.

Plain Python over lists of token ids, in quadratic time. Tests compare the native history with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.sampling_params import SamplingParams
    from heddle.token_rules import TokenRules


def latest(tokens: Sequence[int], count: int) -> Sequence[int]:
    """The last `count` tokens; all tokens if `count` is negative."""
    return tokens if count < 0 else tokens[max(0, len(tokens) - count) :]


def since_breaker(tokens: Sequence[int], breakers: Sequence[Sequence[int]]) -> int:
    """Number of tokens after the breaker that begins last; without a breaker, all tokens.

    If several breakers begin at one position, the longest counts.
    """
    for start in reversed(range(len(tokens))):
        ends = [
            start + len(breaker)
            for breaker in breakers
            if tuple(tokens[start : start + len(breaker)]) == tuple(breaker)
        ]
        if ends:
            return len(tokens) - max(ends)
    return len(tokens)


def repetition_lengths(
    tokens: Sequence[int], shortest: int, breakers: Sequence[Sequence[int]] = ()
) -> dict[int, int]:
    """Map each token that would continue a repetition to the length of the longest repetition.

    A repetition is an end of `tokens` that also occurs earlier. It contains no breaker, and a token
    that is itself a breaker continues no repetition (p-e-w, "DRY", oobabooga/text-generation-webui
    PR 5677; with breakers of several tokens: llama.cpp PR 9702).

    Args:
        tokens: the tokens to search, from prompt and output.
        shortest: shortest length of a repetition.
        breakers: token sequences.
    """
    limit = since_breaker(tokens, breakers)
    alone = {breaker[0] for breaker in breakers if len(breaker) == 1}
    longest: dict[int, int] = {}
    for end in range(1, len(tokens)):  # the earlier occurrence is tokens[end - length : end]
        length = 0
        while length < min(end, limit) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= shortest and tokens[end] not in alone:
            longest[tokens[end]] = max(length, longest.get(tokens[end], 0))
    return longest


def forbidden(params: SamplingParams, output: Sequence[int], rules: TokenRules) -> set[int]:
    """Tokens that may not come next.

    These are the tokens that the rules forbid, tokens that complete a bad sequence, and, before
    `min_tokens`, tokens that end the output.
    """
    tokens = set(rules.forbidden) | {
        bad[-1]
        for bad in rules.bad_sequences
        if len(bad) <= len(output) + 1 and tuple(latest(output, len(bad) - 1)) == bad[:-1]
    }
    return tokens | (set(rules.end_tokens) if len(output) < params.min_tokens else set())
