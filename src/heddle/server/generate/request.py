"""Requests in a form that is the same for all APIs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from heddle.pictures import Laid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.grammars import Grammar
    from heddle.sampling_params import SamplingParams
    from heddle.server.http.fields import Prompt
    from heddle.text.constrained.thinking_budget import ThinkingBudget


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request of a client. It has no reference to the body, which may be large.

    Attributes:
        model: name of the model in the answer.
        prompts: token ids of each prompt, with pictures where it has some.
        params: sampling parameters of all prompts.
        n: number of choices for each prompt.
        stream: whether the answer is a stream of events.
        compile_candidates: grammars to compile one by one if the grammar of `params` does not
            compile, to find the field at fault.
        thinking: limit on the reasoning of each choice; None: no limit.
    """

    model: str
    prompts: Sequence[Sequence[int] | Laid]
    params: SamplingParams
    n: int = 1
    stream: bool = False
    compile_candidates: Sequence[Grammar] = ()
    thinking: ThinkingBudget | None = None


def tokens_in(prompt: Sequence[int] | Laid) -> Sequence[int]:
    """The token ids of a prompt."""
    return prompt.tokens if isinstance(prompt, Laid) else prompt


def prompts_of(prompt: Prompt) -> list[str] | list[list[int]]:
    """The prompts in a field that has one prompt or a list of prompts."""
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return cast("list[str] | list[list[int]]", [prompt] if one else prompt)
