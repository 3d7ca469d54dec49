"""Mixed requests, and loads after a failure, for tests of requests that go on elsewhere."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fake_loads import Loads, until
from heddle.sampling_params import SamplingParams
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.engine import Engine
    from heddle.outputs import Delta


class Timer:
    """Replaces `threading.Timer`: tests say when a model is loaded again."""

    made: list[Timer]

    def __init__(self, delay: float, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._call = lambda: function(*args)
        self.daemon = False
        Timer.made.append(self)

    def start(self) -> None:
        pass

    def fire(self) -> None:
        self._call()


def fail_at(loads: Loads, *steps: int) -> None:
    """Let these steps of the newest executor fail."""

    def before_step(step: int) -> None:
        if step in steps:
            raise RuntimeError("the step burns")

    loads.executors[-1].before_step = before_step


def load_again(loads: Loads) -> None:
    """Wait until a model is to be loaded again, and load it."""
    count = len(loads.executors)
    until(lambda: bool(Timer.made))
    Timer.made.pop().fire()
    until(lambda: len(loads.executors) == count + 1)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"seed": 1, "max_tokens": 12, "ignore_eos": True} | fields))


class End:
    """A sink that waits for the last delta, and not for ever."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self._last: SimpleQueue[Delta] = SimpleQueue()

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.finish is not None:
            self._last.put(delta)

    def wait(self) -> Delta:
        return self._last.get(timeout=PATIENCE)

    def result(self) -> tuple[object, ...]:
        """All that a client gets, except times."""
        finish = self.wait().finish
        parts = [(one.text, one.tokens, one.prompt_logprobs) for one in self.deltas]
        return *parts, finish


MIXED = [
    ("hello", params()),
    ("world a longer prompt than the others", params(seed=2, temperature=1.5, top_k=7)),
    ("penalties", params(seed=3, repetition_penalty=1.4, frequency_penalty=0.5)),
    ("mirostat", params(seed=4, mirostat=2)),
    ("dry", params(seed=5, dry_multiplier=0.8)),
    ("biased", params(seed=6, logit_bias={7: 5.0}, logprobs=2)),
    ("scored", params(seed=7, prompt_logprobs=1)),
    ("guessed guessed guessed", params(seed=8, temperature=0.0)),
]


def submit_all(engine: Engine) -> list[End]:
    ends = [End() for _ in MIXED]
    engine.submit_many(
        (prompt, wanted, sink) for (prompt, wanted), sink in zip(MIXED, ends, strict=True)
    )
    return ends
