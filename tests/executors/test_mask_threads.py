"""Work in threads: slow work delays only itself."""

from __future__ import annotations

import gc
import os
import sys
import threading

from heddle.executors.cpu.mask_threads import _SLOW_PRIORITY, MaskTask, MaskThreads
from patience import PATIENCE


def test_slow_work_does_not_delay_the_work_behind_it() -> None:
    threads, gate, done = MaskThreads(), threading.Event(), list[int]()
    slow = MaskTask(lambda: done.append(0) if gate.wait(PATIENCE) else None)
    quick = [MaskTask(lambda i=i: done.append(i)) for i in (1, 2, 3)]
    for task in (slow, *quick):
        threads.begin(task)
    threads.wait([slow, *quick])
    assert all(task.wait(PATIENCE) for task in quick), "another thread took over"
    assert done == [1, 2, 3]
    later = slow.when_done()
    assert later is not None
    assert not later.done()
    gate.set()
    later.result(PATIENCE)
    assert done == [1, 2, 3, 0]
    assert slow.when_done() is None


def test_a_thread_with_slow_work_gets_a_lower_priority() -> None:
    threads, gate, begun, ids = MaskThreads(), threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        ids.append(threading.get_native_id())
        begun.set()
        gate.wait(PATIENCE)

    tasks = [MaskTask(work), MaskTask(work)]
    threads.begin(tasks[0])
    assert begun.wait(PATIENCE)
    threads.wait(tasks[:1])
    begun.clear()
    threads.begin(tasks[1])
    assert begun.wait(PATIENCE)
    if sys.platform == "linux":  # elsewhere threads share their process's priority
        own = os.getpriority(os.PRIO_PROCESS, 0)
        slow, other = (os.getpriority(os.PRIO_PROCESS, one) for one in ids)
        assert (slow, other) == (max(own, _SLOW_PRIORITY), own)
    gate.set()
    assert all(task.wait(PATIENCE) for task in tasks)


def test_the_number_of_threads_is_bounded_and_all_work_is_done() -> None:
    threads, gate = MaskThreads(), threading.Event()
    tasks = [MaskTask(lambda: gate.wait(PATIENCE) and None) for _ in range(9)]
    for task in tasks:
        threads.begin(task)
        threads.wait([task])
    mine = [one for one in threading.enumerate() if one.name == "heddle-masks"]
    assert len(mine) <= 4
    gate.set()
    assert all(task.wait(PATIENCE) for task in tasks)


def test_slow_work_that_has_ended_leaves_room_for_more() -> None:
    threads, ids = MaskThreads(), list[threading.Thread]()
    for _ in range(5):
        gate = threading.Event()

        def work(gate: threading.Event = gate) -> None:
            ids.append(threading.current_thread())
            gate.wait(PATIENCE)

        tasks = [MaskTask(work), MaskTask(lambda: None)]
        for task in tasks:
            threads.begin(task)
        threads.wait(tasks)
        assert tasks[1].wait(PATIENCE), "another thread took over"
        gate.set()
        ids[-1].join(PATIENCE)


def test_abandoned_work_is_not_started() -> None:
    threads, gate, done = MaskThreads(), threading.Event(), list[int]()
    first = MaskTask(lambda: gate.wait(PATIENCE) and None)
    second = MaskTask(lambda: done.append(2))
    threads.begin(first)
    threads.begin(second)
    second.given_up = True
    gate.set()
    assert second.wait(PATIENCE)
    assert done == []


def test_the_mask_threads_end_with_their_owner() -> None:
    threads = MaskThreads()
    thread: list[threading.Thread] = []
    task = MaskTask(lambda: thread.append(threading.current_thread()))
    threads.begin(task)
    assert task.wait(PATIENCE)
    del threads
    gc.collect()
    thread[0].join(PATIENCE)
    assert not thread[0].is_alive()


def test_a_slow_thread_without_work_ends_too() -> None:
    """A thread may become slow just after its last work. Then two threads read the queue."""
    threads = MaskThreads()
    both: list[threading.Thread] = []
    task = MaskTask(lambda: both.append(threading.current_thread()))
    threads.begin(task)
    assert task.wait(PATIENCE)
    assert threads._replace()
    assert threads._thread is not None
    both.append(threads._thread)
    del threads
    gc.collect()
    for thread in both:
        thread.join(PATIENCE)
        assert not thread.is_alive()
