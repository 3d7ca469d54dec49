"""What a body asks of the engine, whatever API it came by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.server.http.fields import Prompt
    from heddle.text.constrained.thinking_budget import ThinkingBudget
    from heddle.types import Grammar, SamplingParams

_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The choices that a body asks for. Holds nothing of the body itself, which may be large.

    Attributes:
        model: the name that the answer gives the model.
        prompts: token ids of each prompt.
        params: for all prompts.
        n: choices to generate for each prompt.
        stream: whether the answer is to be a stream of events.
        compile_candidates: grammars to compile one by one if the grammar of `params` cannot be
            compiled, to find the field at fault.
        thinking: the bound on the reasoning of each choice; None: no bound.
    """

    model: str
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    n: int = 1
    stream: bool = False
    compile_candidates: Sequence[Grammar] = ()
    thinking: ThinkingBudget | None = None

    def choices(self) -> list[tuple[Sequence[int], SamplingParams]]:
        """Prompt and parameters of every choice; the choices of one prompt lie side by side.

        Choice i of a prompt draws with `seed + i`, so that choices differ. The first choice of a
        prompt scores the prompt for all of them.
        """
        variants = [self.params]
        for index in range(1, self.n):
            seed = None if self.params.seed is None else self.params.seed + index
            # Seeds have 64 bits: after the last comes the first.
            wrapped = seed - _SEEDS if seed is not None and seed >= _SEEDS else seed
            variants.append(self.params.for_another_choice(wrapped))
        return [(prompt, variant) for prompt in self.prompts for variant in variants]


def prompts_of(prompt: Prompt) -> list[str] | list[list[int]]:
    """The prompts of a field that may hold one or several."""
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return cast("list[str] | list[list[int]]", [prompt] if one else prompt)
