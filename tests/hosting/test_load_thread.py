"""One thread runs loads in order, and refers to none that has ended."""

from __future__ import annotations

import threading
from weakref import finalize

from heddle.hosting.load_thread import LoadThread
from patience import PATIENCE


def ended(loads: LoadThread) -> None:
    """Wait until the thread has run all jobs."""
    done = threading.Event()
    loads.add(done.set)
    assert done.wait(PATIENCE)


def test_jobs_run_in_their_order_in_one_thread_of_their_own() -> None:
    loads, ran = LoadThread(), list[tuple[int, threading.Thread]]()
    for number in range(5):
        loads.add(lambda number=number: ran.append((number, threading.current_thread())))  # type: ignore[misc]
    ended(loads)
    assert [number for number, _ in ran] == [0, 1, 2, 3, 4]
    [thread] = {thread for _, thread in ran}
    assert thread is not threading.current_thread()
    assert thread.daemon, "a load in progress must not keep the process alive"
    loads.end()


def test_the_thread_begins_with_the_first_job() -> None:
    before = set(threading.enumerate())
    loads = LoadThread()
    assert set(threading.enumerate()) <= before
    loads.end()


def test_the_thread_ends_after_the_jobs_that_were_added() -> None:
    loads, gate, done = LoadThread(), threading.Event(), threading.Event()
    ran: list[threading.Thread] = []
    loads.add(lambda: assert_waited(gate))
    loads.add(lambda: ran.append(threading.current_thread()))
    loads.add(done.set)
    loads.end()
    gate.set()
    assert done.wait(PATIENCE)
    [thread] = ran
    thread.join(PATIENCE)
    assert not thread.is_alive()


def assert_waited(gate: threading.Event) -> None:
    assert gate.wait(PATIENCE)


class Job:
    def __call__(self) -> None:
        pass


def test_no_job_that_has_run_is_kept() -> None:
    loads, job, gone = LoadThread(), Job(), threading.Event()
    finalize(job, gone.set)
    loads.add(job)
    del job
    assert gone.wait(PATIENCE), "the thread waits for the next job, and refers to the last one"
    loads.end()
