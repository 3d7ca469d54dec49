"""The scheduler agrees with the naive model under random events."""

from hypothesis import settings
from machine import Machine

TestScheduler = Machine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
