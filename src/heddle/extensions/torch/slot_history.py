"""The history of a slot's sequence for the device's chain: its tokens, their counts, its bans.

All of it follows from the binding and the tokens since. The device keeps no state of a sequence but
its latest token, which the host may not know yet (`SampledRow`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.torch.batch_rows import numbers_of
from heddle.extensions.torch.chain import chain_of
from heddle.extensions.torch.engram import EngramHistory
from heddle.extensions.torch.repetitions import Repetitions
from heddle.extensions.torch.sampled_row import SampledRow
from heddle.extensions.torch.token_counts import TokenCounts
from heddle.sampling_params import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.extensions.torch.sampled_row import Bits, Ints
    from heddle.sampling_params import SamplingParams
    from heddle.step import Binding


_NO_TOKENS = np.empty(0, np.int64)
_NO_REPEATS = _NO_TOKENS, np.empty(0, np.float32), _NO_TOKENS


class SlotHistory:
    """The history of a slot's sequence."""

    def __init__(self, binding: Binding, params: SamplingParams, vocabulary: int) -> None:
        self._slot = binding.slot
        self._params = params
        self._chain = chain_of(params)
        self._numbers = numbers_of(params)
        self._vocabulary = vocabulary
        finite = {
            token: bias
            for token, bias in params.logit_bias.items()
            if token < vocabulary and math.isfinite(bias)
        }
        self._bias = np.array([*finite], np.int64), np.array([*finite.values()], np.float32)
        self._banned = self._bits(binding.rules.forbidden)
        self._ends = self._bits(binding.rules.end_tokens)
        self._bad_sequences = binding.rules.bad_sequences
        self._tokens = [*binding.prompt, *binding.output]
        self._prompt_tokens = len(binding.prompt)
        counted = Stage.PENALTIES in self._chain
        window = params.repeat_last_n if params.repeat_last_n >= 0 else None
        self._counts = TokenCounts(binding.prompt, binding.output, window) if counted else None
        self._repetitions = None
        if Stage.DRY in self._chain:
            self._repetitions = Repetitions(params, binding.rules.breakers, self._tokens)
        engram = binding.rules.of(EngramBias)
        self._engram = None if engram is None else EngramHistory(engram, self._tokens)

    def rows(
        self, guesses: Sequence[int], masks: Sequence[bytes], *, follows_unknown: bool = False
    ) -> list[SampledRow]:
        """Inputs for the next token, and for those after each guess.

        If it `follows_unknown`, the history does not have the token before yet; then there are no
        guesses, masks and engrams. There are no more rows than masks; without masks, all tokens are
        allowed in all rows.
        """
        if follows_unknown:
            assert not (guesses or masks or self._engram), "they need the token on the host"
            return [self._row_after_unknown()]
        wanted = 1 + len(guesses) if not masks else min(len(masks), 1 + len(guesses))
        before = None if self._repetitions is None else self._repetitions.state
        rows = []
        for i in range(wanted):
            if i:
                self.append(guesses[i - 1])
            rows.append(self._row(masks[i] if masks else b""))
        for _ in range(wanted - 1):
            self._take_back()
        if self._repetitions is not None and before is not None:
            self._repetitions.state = before
        return rows

    def append(self, token: int) -> None:
        """Record that the output continues with `token`."""
        self._tokens.append(token)
        if self._counts is not None:
            self._counts.append(self._tokens)
        if self._engram is not None:
            self._engram.append(self._tokens)
        if self._repetitions is not None:
            self._repetitions.append(token)

    def _take_back(self) -> None:
        if self._counts is not None:
            self._counts.take_back(self._tokens)
        if self._engram is not None:
            self._engram.take_back()
        self._tokens.pop()

    @property
    def _index(self) -> int:
        """The number of output tokens."""
        return len(self._tokens) - self._prompt_tokens

    def _row(self, mask: bytes) -> SampledRow:
        biases = [self._bias]
        if self._engram is not None:
            tokens, values = self._engram.biases(self._tokens)
            known = tokens < self._vocabulary
            biases.append((tokens[known], values[known]))
        return SampledRow(
            self._params,
            self._chain,
            self._numbers,
            self._index,
            None,
            self._allowed(self._index, mask, self._completed()),
            _NO_TOKENS.reshape(2, 0),
            biases,
            _NO_TOKENS.reshape(3, 0) if self._counts is None else self._counts.table(),
            _NO_REPEATS if self._repetitions is None else self._repetitions.penalties(),
        )

    def _row_after_unknown(self) -> SampledRow:
        """The inputs if the device knows one token more."""
        index, counts, repeats = self._index + 1, self._counts, self._repetitions
        always = [bad[0] for bad in self._bad_sequences if len(bad) == 1]
        return SampledRow(
            self._params,
            self._chain,
            self._numbers,
            index,
            self._slot,
            self._allowed(index, b"", always),
            self._late_bans(),
            [self._bias],
            _NO_TOKENS.reshape(3, 0) if counts is None else counts.table_with_unknown(self._tokens),
            _NO_REPEATS if repeats is None else repeats.penalties_after_unknown(),
        )

    def _allowed(self, index: int, mask: bytes, completed: Sequence[int]) -> Bits | None:
        """The tokens that may have place `index` of the output, without `completed` ones."""
        bans = [self._banned, self._bits(completed)]
        if index < self._params.min_tokens:
            bans.append(self._ends)
        found = [one for one in bans if one is not None]
        if not mask and not found:
            return None
        size = self._bytes
        allowed = np.full(size, 0xFF, np.uint8)
        if mask:
            given = np.frombuffer(mask, np.uint8)[:size]
            allowed[: len(given)] = given
            allowed[len(given) :] = 0
        for ban in found:
            allowed &= ~ban
        return allowed

    def _completed(self) -> list[int]:
        """The tokens that would complete a bad sequence."""
        return [bad[-1] for bad in self._bad_sequences if self._ends_with(bad[:-1])]

    def _late_bans(self) -> Ints:
        """See `SampledRow.late_bans`."""
        bans = [
            (bad[-1], bad[-2])
            for bad in self._bad_sequences
            if len(bad) > 1 and bad[-1] < self._vocabulary and self._ends_with(bad[:-2])
        ]
        return np.array(bans, np.int64).reshape(-1, 2).T

    def _ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether the output ends with `tokens`."""
        count = len(tokens)
        return count <= self._index and (not count or self._tokens[-count:] == [*tokens])

    @property
    def _bytes(self) -> int:
        return -(-self._vocabulary // 8)

    def _bits(self, tokens: Iterable[int]) -> Bits | None:
        """A bit for each of the tokens (vocabulary / 8,); None if there is none."""
        known = [token for token in tokens if token < self._vocabulary]
        if not known:
            return None
        flags = np.zeros(self._bytes * 8, np.bool_)
        flags[known] = True
        return np.packbits(flags, bitorder="little")
