"""Whole steps of an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.executor import Executor
    from heddle.step import StepPlan, StepResult


def execute(executor: Executor, plan: StepPlan) -> StepResult:
    """Submit the plan and collect its result."""
    executor.submit(plan)
    return executor.collect()
