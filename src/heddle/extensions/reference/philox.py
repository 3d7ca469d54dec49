"""Philox4x32-10, the counter-based random number generator of all draws.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A draw is a
function of the request's seed and the index of the token to choose. It needs no state, so it is the
same in every batch, after preemption, and in the native sampler.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Counter = tuple[int, int, int, int]


def philox4x32(counter: Counter, key: tuple[int, int]) -> Counter:
    """Four random 32-bit words for a counter of four and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        even, odd = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (odd >> 32) ^ c1 ^ k0, odd & _MASK, (even >> 32) ^ c3 ^ k1, even & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, index: int, stream: int = 0) -> float:
    """The draw for generated token `index` of a request: a multiple of 2**-24 in [0, 1).

    The key is the seed modulo 2**64, low word first; the counter is (index, stream, 0, 0). Stream 0
    chooses tokens. Stream 1 decides whether XTC applies.
    """
    counter = (index & _MASK, stream, 0, 0)
    word = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))[0]
    return (word >> 8) * 2.0**-24
