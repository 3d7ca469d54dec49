"""Computes token counts and times of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.outputs import Progress, Usage

Json = dict[str, Any]


def total_usage(usages: Sequence[Usage], choices_per_prompt: int) -> Json:
    """Token counts of a request, in OpenAI's shape. Each prompt counts once, as in OpenAI's API.

    `usages` has an entry for each choice, in the order of prompts. A prompt token counts as cached
    if no choice of the prompt computed it.
    """
    by_prompt = [
        usages[start : start + choices_per_prompt]
        for start in range(0, len(usages), choices_per_prompt)
    ]
    prompt = sum(group[0].prompt_tokens for group in by_prompt)
    cached = sum(min(usage.cached_tokens for usage in group) for group in by_prompt)
    completion = sum(usage.completion_tokens for usage in usages)
    counts: Json = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    drafted, accepted = _guesses(usages)
    if drafted:
        counts["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return counts


def _guesses(usages: Sequence[Usage]) -> tuple[int, int]:
    """Guesses that steps computed, and how many were right."""
    return sum(one.drafted_tokens for one in usages), sum(one.accepted_tokens for one in usages)


def timings(usages: Sequence[Usage]) -> Json:
    """Times of a request in ms and rates in tokens/s, under llama.cpp's names.

    `prompt_n` counts computed prompt tokens; `cache_n` counts cached prompt tokens. Token counts
    are sums over all choices; times are maxima. The time of the first token counts as prompt time.
    So rates of the output use one token less than `predicted_n` for each choice. `queue_ms` is the
    time before the first step; llama.cpp does not have this field. `draft_n` and
    `draft_n_accepted` count guesses, if there were any.
    """
    cached = sum(usage.cached_tokens for usage in usages)
    prompt = sum(usage.prompt_tokens for usage in usages) - cached
    predicted = sum(usage.completion_tokens for usage in usages)
    later = sum(max(0, usage.completion_tokens - 1) for usage in usages)
    prompt_ms = 1e3 * max((usage.prompt_seconds for usage in usages), default=0.0)
    predicted_ms = 1e3 * max((usage.completion_seconds for usage in usages), default=0.0)
    drafted, accepted = _guesses(usages)
    guesses = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
    return {
        "cache_n": cached,
        "prompt_n": prompt,
        "predicted_n": predicted,
        "queue_ms": 1e3 * max((usage.queue_seconds for usage in usages), default=0.0),
        **_rates("prompt", prompt, prompt_ms),
        **_rates("predicted", later, predicted_ms),
        **guesses,
    }


def _rates(of: str, tokens: int, ms: float) -> Json:
    return {
        f"{of}_ms": ms,
        f"{of}_per_token_ms": ms / tokens if tokens else 0.0,
        f"{of}_per_second": 1e3 * tokens / ms if ms else 0.0,
    }


def prompt_progress(progress: Progress) -> Json:
    """How far a prompt is computed, under llama.cpp's names, with times in ms.

    `queue_ms` is the time before the first step; llama.cpp does not have this field.
    """
    return {
        "total": progress.prompt_tokens,
        "cache": progress.cached_tokens,
        "processed": progress.computed_tokens,
        "time_ms": 1e3 * progress.prompt_seconds,
        "queue_ms": 1e3 * progress.queue_seconds,
    }


def totals(usages: Sequence[Usage], choices_per_prompt: int) -> Json:
    """The last fields of an answer, `usage` and `timings`, for its choices in order."""
    return {"usage": total_usage(usages, choices_per_prompt), "timings": timings(usages)}
