"""The candidates of a batch of rows: tokens that a chain of samplers has not removed.

The definition is `heddle.extensions.reference.sampler.Candidates`. All logits are float32 and
change by the same operations as in the native sampler, so equal logits stay equal. All masses are
float64.
"""

from __future__ import annotations

import torch

from heddle.extensions.torch.sums import (
    BLOCK,
    block_sums,
    exp,
    first,
    last,
    prefix_sums,
)

_MOST = torch.finfo(torch.float32).max
_LOWEST = -87.33654
"""The native sampler's weights are 0 below this exponent."""


class Candidates:
    """The candidates of some rows, which all run the same chain.

    Attributes:
        logits: (rows, n) float32; minus infinity: not a candidate. n is a multiple of `BLOCK`.
        tokens: (rows, n), best first; None before the first cut: column t is token t.
        factor: (rows, 1) float32: 1 / (the temperature applied so far).
    """

    def __init__(
        self,
        logits: torch.Tensor,
        tokens: torch.Tensor | None = None,
        factor: torch.Tensor | None = None,
    ) -> None:
        self.logits = logits
        self.tokens = tokens
        self.factor = torch.ones_like(logits[:, :1]) if factor is None else factor

    # --- reading ----------------------------------------------------------------------------------

    @property
    def alive(self) -> torch.Tensor:
        """Whether each column is a candidate."""
        return self.logits > -torch.inf

    def peak(self) -> torch.Tensor:
        """The highest logit (rows, 1)."""
        return self.logits.amax(-1, keepdim=True)

    def exponents(self) -> torch.Tensor:
        """Logarithms of the weights (rows, n) float32, at most 0."""
        return (self.logits - self.peak()) * self.factor

    def weights(self) -> torch.Tensor:
        """Unnormalised probabilities (rows, n) float64. The best candidate weighs 1."""
        exponents = self.exponents()
        weights = exp(exponents.double())
        return torch.where(exponents < _LOWEST, 0.0, weights)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum (rows, 1) of float64 values (rows, n), which are 0 where there is no candidate.

        The sum of a list ends at its last candidate: the bits do not depend on the list's length.
        """
        if self.tokens is None:
            return prefix_sums(block_sums(values))[:, -1:]
        return prefix_sums(values).gather(-1, last(self.alive))

    def rank(self) -> torch.Tensor:
        """The number of better candidates for each one of a list (rows, n)."""
        return self.alive.cumsum(-1) - 1

    # --- listing ----------------------------------------------------------------------------------

    def best_first(self, columns: int) -> Candidates:
        """A list of at least `columns` best candidates, ties by lower token; a list as it is."""
        if self.tokens is not None:
            return self
        columns = min(-(-columns // BLOCK) * BLOCK, self.logits.shape[-1])
        return Candidates(*_sorted(self.logits, columns), self.factor)

    def listed(self) -> Candidates:
        """All candidates as a list, best first. A list stays as it is."""
        return self.best_first(self.logits.shape[-1])

    # --- changing ---------------------------------------------------------------------------------

    def keep(self, chosen: torch.Tensor) -> Candidates:
        """Remove the columns that are not chosen (rows, n)."""
        logits = torch.where(chosen, self.logits, -torch.inf)
        return Candidates(logits, self.tokens, self.factor)

    def edit(self, changed: torch.Tensor) -> Candidates:
        """The same candidates with other logits (rows, n). Sorts a list again."""
        logits = torch.where(self.alive, changed, -torch.inf)
        if self.tokens is None:
            return Candidates(logits, None, self.factor)
        return Candidates(*_sorted(logits, logits.shape[-1], self.tokens), self.factor)

    def cool(self, temperature: torch.Tensor) -> Candidates:
        """Divide the logits by a temperature (rows, 1) float32."""
        return Candidates(self.logits, self.tokens, self.factor / temperature)

    # --- choosing ---------------------------------------------------------------------------------

    def best(self) -> torch.Tensor:
        """The columns (rows, 1) of the best candidates; among equals, the first."""
        return first(self.logits == self.peak(), 0)

    def draw(self, uniforms: torch.Tensor) -> torch.Tensor:
        """The columns (rows, 1) of the first candidates whose cumulative weight exceeds the share
        `uniforms` (rows, 1) of the sum."""
        weights = self.weights()
        if self.tokens is not None:
            reached = prefix_sums(weights)
            limit = reached.gather(-1, last(self.alive)) * uniforms
            return _first_beyond(weights, limit, reached)
        blocks = block_sums(weights)
        reached = prefix_sums(blocks)
        limit = reached[:, -1:] * uniforms
        block = _first_beyond(blocks, limit, reached)
        before = torch.where(block > 0, reached.gather(-1, (block - 1).clamp(min=0)), 0.0)
        columns = block * BLOCK + torch.arange(BLOCK, device=weights.device)
        inside = weights.gather(-1, columns)
        return block * BLOCK + _first_beyond(inside, limit - before, prefix_sums(inside))

    def tokens_at(self, columns: torch.Tensor) -> torch.Tensor:
        """The tokens of columns (rows, any)."""
        return columns if self.tokens is None else self.tokens.gather(-1, columns)


def in_range(logits: torch.Tensor) -> torch.Tensor:
    """Logits limited to the range of float32."""
    return logits.clamp(-_MOST, _MOST)


def _first_beyond(
    weights: torch.Tensor, limit: torch.Tensor, reached: torch.Tensor
) -> torch.Tensor:
    """The first column with a weight whose prefix sum `reached` exceeds `limit`; else the last
    with one."""
    possible = weights > 0.0
    return first((reached > limit) & possible, last(possible))


def _sorted(
    logits: torch.Tensor, columns: int, tokens: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best columns of each row, best first, ties by lower token: their logits and tokens.

    The keys are integers. All differ, or the sort is stable, so every correct algorithm gives the
    same order. All columns in the order of tokens need no token in the key: a radix sort then
    reads half of the bits.
    """
    bits = (logits + 0.0).view(torch.int32)  # -0 and 0 are a tie
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if tokens is None and columns == logits.shape[-1]:
        places = (~ordered).sort(dim=-1, stable=True).indices
        return logits.gather(-1, places), places
    if tokens is None:
        tokens = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
    keys = (ordered.long() << 32) | (0x7FFFFFFF - tokens)
    places = keys.topk(columns, -1).indices
    return logits.gather(-1, places), tokens.gather(-1, places)
