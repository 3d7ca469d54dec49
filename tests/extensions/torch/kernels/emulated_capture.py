"""Records the work of a region on the processor and repeats it, as a CUDA graph does.

The recording keeps tensors and numbers as they were: operations read and write the same memory each
time, and numbers that the host computed stay what they were. What a stream cannot record fails.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

from heddle.extensions.torch.collective import GroupCollective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAITS = (
    *("_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal"),
    *("_unique2", "unique_dim", "unique_consecutive"),
)
"""Operations whose result the host needs before it goes on."""
UPLOADS = ("lift_fresh", "lift_fresh_copy")
"""Operations that make tensors of numbers on the host."""


class RecordingError(AssertionError):
    """The region does what no stream records."""


class EmulatedCapture:
    """A `heddle.extensions.torch.graphs.Capture`.

    Attributes:
        replays: how often a recording has been repeated.
    """

    def __init__(self) -> None:
        self.replays = 0

    def prepare(self, region: Callable[[], None]) -> None:
        """Nothing: `record` computes the region."""

    def record(self, region: Callable[[], None]) -> Callable[[], None]:
        recorder = _Recorder()
        with recorder.hosts_forbidden(), recorder.kernels(), recorder.exchanges(), recorder:
            region()

        def repeat() -> None:
            self.replays += 1
            for work in recorder.work:
                work()

        return repeat


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.work: list[Callable[[], None]] = []
        self._in_kernel = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        decomposed = self._decomposed(func, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        self._check(func, args)
        found = func(*args, **kwargs)
        given = {_memory(one) for one in tree_leaves((args, kwargs)) if _is_tensor(one)}
        made = [one for one in tree_leaves(found) if _is_tensor(one) and _memory(one) not in given]
        if func._schema.is_mutable:
            self.work.append(lambda: func(*args, **kwargs))
        elif made and "empty" in func._schema.name:
            self.work.append(lambda: _spoil(made))
        elif made:
            self.work.append(lambda: _copy(made, given, func(*args, **kwargs)))
        return found

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation that consists of others, which are recorded."""
        if func._schema.name.removeprefix("aten::") in (*WAITS, *UPLOADS):
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)

    def _check(self, func: Any, args: Any) -> None:
        name = func._schema.name.removeprefix("aten::")
        if name in WAITS:
            raise RecordingError(f"{name} waits for the device")
        if name in UPLOADS:
            raise RecordingError("numbers of the host become a tensor")
        places = tree_leaves(args[1:2]) if name.startswith("index") else []
        if any(_is_tensor(one) and one.dtype in (torch.bool, torch.uint8) for one in places):
            raise RecordingError("the number of chosen elements is not known")
        if name == "repeat_interleave" and func._overloadname != "self_int":
            raise RecordingError("the number of repetitions is not known")

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Record launches of kernels, with all their arguments."""
        run = InterpretedFunction.run

        def recorded(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            def launch() -> None:
                with _disable_current_modes():
                    run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

            assert not callable(grid), "a grid of numbers is recorded"
            self.work.append(launch)
            self._in_kernel = True
            launch()
            self._in_kernel = False

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InterpretedFunction, "run", recorded)
            yield

    @contextmanager
    def exchanges(self) -> Iterator[None]:
        """Record what ranks exchange."""
        exchange = GroupCollective._exchange

        def recorded(group: GroupCollective, found: torch.Tensor, x: torch.Tensor) -> None:
            def work() -> None:
                with _disable_current_modes():
                    exchange(group, found, x)

            self.work.append(work)
            work()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupCollective, "_exchange", recorded)
            yield

    @contextmanager
    def hosts_forbidden(self) -> Iterator[None]:
        """Refuse what moves numbers between the host and the device. Kernels may, in emulation."""

        def refused(original: Any, name: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if self._in_kernel:
                    return original(*args, **kwargs)
                raise RecordingError(f"{name} copies between host and device")

            return call

        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name in ("cpu", "numpy", "tolist", "item", "__bool__", "__int__", "__float__"):
                patch.setattr(torch.Tensor, name, refused(getattr(torch.Tensor, name), name))
            patch.setattr(torch, "from_numpy", refused(torch.from_numpy, "from_numpy"))
            yield


def _is_tensor(one: Any) -> bool:
    return isinstance(one, torch.Tensor)


def _memory(one: torch.Tensor) -> int:
    return one.untyped_storage()._cdata


def _spoil(made: list[torch.Tensor]) -> None:
    """Fill the tensors as if they held what happened to lie in memory."""
    for one in made:
        one.fill_(float("nan") if one.is_floating_point() else 1)


def _copy(made: list[torch.Tensor], given: set[int], found: Any) -> None:
    """Copy results to where they were when they were recorded."""
    fresh = [one for one in tree_leaves(found) if _is_tensor(one) and _memory(one) not in given]
    for target, one in zip(made, fresh, strict=True):
        target.copy_(one)
