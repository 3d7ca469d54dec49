"""Why a sequence computes nothing: for warnings and metrics."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.scheduler.sequence import Sequence


class WaitReason(Enum):
    """Why a sequence computes nothing in a step. The values are labels of metrics."""

    SLOT = "no_slot"
    PAGES = "no_pages"
    LEADER = "follows"
    DISK = "disk"
    MASK = "mask"
    EYES = "eyes"
    BUDGET = "budget"


def describe_wait(sequence: Sequence, reason: WaitReason) -> str:
    """A clause for people that says why a sequence waits."""
    if reason is WaitReason.LEADER and sequence.leader is not None:
        return f"request {sequence.leader.id} computes a prefix that both share"
    return _CLAUSES[reason]


def wait_of_running(sequence: Sequence) -> WaitReason:
    """Why a sequence with a slot computes nothing."""
    if sequence.awaited is not None:
        return WaitReason.MASK
    if sequence.restore is not None:
        return WaitReason.DISK
    if sequence.leader is not None:
        return WaitReason.LEADER
    return WaitReason.EYES if sequence.wants_looks else WaitReason.BUDGET


_CLAUSES = {
    WaitReason.SLOT: "no slot is free (--slots)",
    WaitReason.PAGES: "too few pages are free for it or for a request before it (--kv-cache)",
    WaitReason.LEADER: "another request computes a prefix that both share",
    WaitReason.DISK: "the disk tier reads its prefix",
    WaitReason.MASK: "the mask of its grammar is late",
    WaitReason.EYES: "the eyes of the model have not seen its pictures yet",
    WaitReason.BUDGET: "streams and older prompts fill the steps (--batch-tokens, --max-gap-ms)",
}
