"""Requests in a form that is the same for all APIs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.grammars import Grammar
    from heddle.sampling_params import SamplingParams
    from heddle.server.http.fields import Prompt
    from heddle.text.constrained.thinking_budget import ThinkingBudget

_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request of a client. It has no reference to the body, which may be large.

    Attributes:
        model: name of the model in the answer.
        prompts: token ids of each prompt.
        params: sampling parameters of all prompts.
        n: number of choices for each prompt.
        stream: whether the answer is a stream of events.
        compile_candidates: grammars to compile one by one if the grammar of `params` does not
            compile, to find the field at fault.
        thinking: limit on the reasoning of each choice; None: no limit.
    """

    model: str
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    n: int = 1
    stream: bool = False
    compile_candidates: Sequence[Grammar] = ()
    thinking: ThinkingBudget | None = None

    def choices(self) -> list[tuple[Sequence[int], SamplingParams]]:
        """Prompt and parameters of every choice, in the order of prompts.

        Choice i of a prompt draws with `seed + i`, so that choices differ. Only the first choice of
        a prompt scores the prompt.
        """
        variants = [self.params]
        for index in range(1, self.n):
            seed = None if self.params.seed is None else self.params.seed + index
            # Seeds have 64 bits: the last seed wraps around to the first.
            wrapped = seed - _SEEDS if seed is not None and seed >= _SEEDS else seed
            variants.append(self.params.for_another_choice(wrapped))
        return [(prompt, variant) for prompt in self.prompts for variant in variants]


def prompts_of(prompt: Prompt) -> list[str] | list[list[int]]:
    """The prompts in a field that has one prompt or a list of prompts."""
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return cast("list[str] | list[list[int]]", [prompt] if one else prompt)
