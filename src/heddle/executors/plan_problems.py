"""Finds what is out of range in a plan, for executors that would else read other memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.executors.given_states import given_states
from heddle.executors.serving import page_groups, page_tables
from heddle.state import pages_for
from heddle.step import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.executor import ModelShape
    from heddle.state import StateMemory
    from heddle.step import Chunk, PageCopy, StepPlan


def plan_problems(
    plan: StepPlan,
    shape: ModelShape,
    memory: StateMemory,
    most_tokens: int,
    *,
    reads_states: bool,
    follows_step: bool = False,
) -> Iterator[str]:
    """Everything in a plan that is out of range, except fixed-size states.

    `most_tokens` is the most tokens of a step. `reads_states` says whether the model reads hidden
    states beside tokens, `follows_step` whether a step is in flight: its tokens are `UNKNOWN`.
    """
    known = range(shape.vocabulary)
    if not 1 <= sum(len(chunk.tokens) for chunk in plan.chunks) <= most_tokens:
        yield "bad token count"
    if reads_states:
        try:
            given_states(plan)
        except ValueError as error:
            yield str(error)
    for copy in plan.copies:
        if not _may_copy(copy, memory):
            yield f"bad copy of page {copy.source} to page {copy.target}"
    for chunk in plan.chunks:
        targets = () if chunk.score is None else chunk.score.targets
        unknown = follows_step and (*chunk.tokens,) == (UNKNOWN,)
        if not all(token in known for token in (*(() if unknown else chunk.tokens), *targets)):
            yield "bad token"
        if chunk.start < 0 or not chunk.tokens or (chunk.start and not shape.causal):
            yield "bad span"
        elif not _has_pages(chunk, memory):
            yield "bad page"


def _may_copy(copy: PageCopy, memory: StateMemory) -> bool:
    """Whether source and target are two different pages of the group."""
    if copy.window is not None and not 0 <= copy.window < len(memory.windows):
        return False
    pages = range(page_groups(memory)[0 if copy.window is None else copy.window + 1].pages)
    return copy.source != copy.target and copy.source in pages and copy.target in pages


def _has_pages(chunk: Chunk, memory: StateMemory) -> bool:
    """Whether the chunk names pages for all positions that its tokens see in each group."""
    if len(chunk.windows) != len(memory.windows):
        return False
    end = pages_for(chunk.start + len(chunk.tokens))
    seen = [0, *(window.first_page(chunk.start) for window in memory.windows)]
    tables = zip(page_groups(memory), page_tables(chunk), seen, strict=True)
    return all(
        0 <= first <= first_seen
        and first + len(pages) >= end
        and all(page in range(group.pages) for page in pages[: end - first])
        for group, (first, pages), first_seen in tables
    )
