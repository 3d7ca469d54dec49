"""Work in threads: slow work delays only itself."""

from __future__ import annotations

import gc
import os
import sys
import threading

from heddle.executors.cpu.mask_threads import _SLOW_PRIORITY, Making, MaskThreads
from patience import PATIENCE


def test_slow_work_does_not_delay_the_work_behind_it() -> None:
    threads, gate, done = MaskThreads(), threading.Event(), list[int]()
    slow = Making(lambda: done.append(0) if gate.wait(PATIENCE) else None)
    quick = [Making(lambda i=i: done.append(i)) for i in (1, 2, 3)]
    for making in (slow, *quick):
        threads.begin(making)
    threads.wait([slow, *quick])
    assert all(making.wait(PATIENCE) for making in quick), "another thread took over"
    assert done == [1, 2, 3]
    later = slow.later()
    assert later is not None
    assert not later.done()
    gate.set()
    later.result(PATIENCE)
    assert done == [1, 2, 3, 0]
    assert slow.later() is None


def test_a_thread_with_slow_work_gets_a_lower_priority() -> None:
    threads, gate, begun, ids = MaskThreads(), threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        ids.append(threading.get_native_id())
        begun.set()
        gate.wait(PATIENCE)

    makings = [Making(work), Making(work)]
    threads.begin(makings[0])
    assert begun.wait(PATIENCE)
    threads.wait(makings[:1])
    begun.clear()
    threads.begin(makings[1])
    assert begun.wait(PATIENCE)
    if sys.platform == "linux":  # elsewhere threads share their process's priority
        own = os.getpriority(os.PRIO_PROCESS, 0)
        slow, other = (os.getpriority(os.PRIO_PROCESS, one) for one in ids)
        assert (slow, other) == (max(own, _SLOW_PRIORITY), own)
    gate.set()
    assert all(making.wait(PATIENCE) for making in makings)


def test_the_number_of_threads_is_bounded_and_all_work_is_done() -> None:
    threads, gate = MaskThreads(), threading.Event()
    makings = [Making(lambda: gate.wait(PATIENCE) and None) for _ in range(9)]
    for making in makings:
        threads.begin(making)
        threads.wait([making])
    mine = [one for one in threading.enumerate() if one.name == "heddle-masks"]
    assert len(mine) <= 4
    gate.set()
    assert all(making.wait(PATIENCE) for making in makings)


def test_slow_work_that_has_ended_leaves_room_for_more() -> None:
    threads, ids = MaskThreads(), list[threading.Thread]()
    for _ in range(5):
        gate = threading.Event()

        def work(gate: threading.Event = gate) -> None:
            ids.append(threading.current_thread())
            gate.wait(PATIENCE)

        makings = [Making(work), Making(lambda: None)]
        for making in makings:
            threads.begin(making)
        threads.wait(makings)
        assert makings[1].wait(PATIENCE), "another thread took over"
        gate.set()
        ids[-1].join(PATIENCE)


def test_abandoned_work_is_not_started() -> None:
    threads, gate, done = MaskThreads(), threading.Event(), list[int]()
    first = Making(lambda: gate.wait(PATIENCE) and None)
    second = Making(lambda: done.append(2))
    threads.begin(first)
    threads.begin(second)
    second.given_up = True
    gate.set()
    assert second.wait(PATIENCE)
    assert done == []


def test_the_mask_threads_end_with_their_owner() -> None:
    threads = MaskThreads()
    thread: list[threading.Thread] = []
    making = Making(lambda: thread.append(threading.current_thread()))
    threads.begin(making)
    assert making.wait(PATIENCE)
    del threads
    gc.collect()
    thread[0].join(PATIENCE)
    assert not thread[0].is_alive()


def test_a_slow_thread_without_work_ends_too() -> None:
    """A thread may become slow just after its last work. Then two threads read the queue."""
    threads = MaskThreads()
    both: list[threading.Thread] = []
    making = Making(lambda: both.append(threading.current_thread()))
    threads.begin(making)
    assert making.wait(PATIENCE)
    assert threads._replace()
    assert threads._thread is not None
    both.append(threads._thread)
    del threads
    gc.collect()
    for thread in both:
        thread.join(PATIENCE)
        assert not thread.is_alive()
