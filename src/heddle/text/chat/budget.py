"""The work and the memory that one rendering of a chat template may take.

A step in Python can be interrupted, a step in C cannot. So the budget does two things: it checks
the processor time between steps, and it bounds the size of what one step in C may read or make.

`bounded_sandbox.py` puts the filters of `COUNTING` into each template when it is loaded. All that a
rendering runs is in this module, except the checks of calls and operators (`sizes.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from time import thread_time
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, pass_context
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Template
    from jinja2.runtime import Context

_SECONDS = 2.0
"""Processor time that one rendering may take. A conversation of 1,000 messages takes 0.05 s."""

_MOST_CHARACTERS = 32 << 20
"""Most characters of one value."""

_MOST_MADE = 256 << 20
"""Most characters of all values that one rendering makes."""

_MOST_RANGE_STEPS = 100_000
"""Most steps of all loops over `range`."""

_ELEMENT = 64
"""Characters that an element of a container counts for when a container is made: its memory."""

_NODE = 4
"""Characters that an element counts for when a container becomes text: `1, `."""

_CHARACTERS_A_STEP = 16 * 1024
"""Characters that C reads or makes in the time of about one step."""

_STEPS_A_CHECK = 64


class Budget:
    """The time and characters that one rendering has left."""

    def __init__(self) -> None:
        self._until = thread_time() + _SECONDS
        self._steps = 0
        self._made = 0
        self._range_steps = 0

    def step(self, characters: int = 0) -> None:
        """Count an iteration, a call or an operation that reads or makes `characters`.

        Raises:
            TemplateError: the rendering took too long.
        """
        self._steps += 1 + characters // _CHARACTERS_A_STEP
        if self._steps >= _STEPS_A_CHECK:
            self._steps = 0
            self.check()

    def check(self) -> None:
        """Check the processor time used so far.

        Raises:
            TemplateError: the rendering took too long.
        """
        if thread_time() > self._until:
            raise TemplateError(f"it takes more than {_SECONDS:g} s")

    def made(self, value: Any) -> None:
        """Count a value that the rendering has made.

        Raises:
            TemplateError: the value, or all values together, are too large.
        """
        if isinstance(value, str):
            size = len(value)
        elif isinstance(value, (list, tuple, dict)):
            size = _ELEMENT * len(value)
        else:
            return
        check_length(size)
        self.add(size)

    def add(self, size: int) -> None:
        """Count the size of a value that the rendering has made, and that is not too large alone.

        Raises:
            TemplateError: all values together are too large.
        """
        self._made += size
        if self._made > _MOST_MADE:
            raise TemplateError(f"it makes more than {_MOST_MADE:,} characters")
        self.step(size)

    def range(self, *arguments: int) -> range:
        """`range`. All calls share one number of steps, so nested loops end.

        Raises:
            TemplateError: they have too many steps.
        """
        steps = range(*arguments)
        self._range_steps += len(steps)
        if self._range_steps > _MOST_RANGE_STEPS:
            raise TemplateError(f"loops over range take more than {_MOST_RANGE_STEPS} steps")
        return steps

    def weigh(self, value: Any) -> int:
        """The characters of `value` as text, about.

        An element counts as often as the text would show it: sixty lists, each of which holds the
        one before twice, are small in memory, and their text has 10^18 characters.

        Raises:
            TemplateError: they are too many.
        """
        if isinstance(value, str):
            self.step(len(value))
            return len(value)
        total, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, Namespace):
                raise TemplateError("it uses a namespace as a text or compares it")
            elif isinstance(item, Collection) and not isinstance(item, (range, Undefined)):
                total += _NODE * len(item)
                check_length(total)
                self.step(_ELEMENT * len(item))
                waiting.extend(item)
                if isinstance(item, Mapping):
                    waiting.extend(item.values())
            check_length(total)
        self.step(total)
        return total

    def listed(self, items: Any) -> Any:
        """`items`; if they are an iterator, a list of them. Counts them."""
        if not isinstance(items, Iterator):
            return items
        found = []
        for item in items:
            self.step()
            found.append(item)
            check_length(_ELEMENT * len(found))
        return found


def check_length(length: int) -> None:
    """
    Raises:
        TemplateError: `length` characters are too many for one value.
    """
    if length > _MOST_CHARACTERS:
        raise TemplateError(
            f"it makes a value of {length:,} characters; the limit is {_MOST_CHARACTERS:,}"
        )


BUDGET: ContextVar[Budget] = ContextVar("BUDGET")
"""The budget of the rendering that runs in this thread."""


def render(template: Template, variables: Mapping[str, Any]) -> str:
    """The text of a template, which gets a new budget."""
    # The budget is no variable of the template, so no template reaches it.
    token = BUDGET.set(Budget())
    try:
        return template.render(variables)
    finally:
        BUDGET.reset(token)


def joined(parts: Iterable[str]) -> str:
    """Join the output of a template, of a macro or of a block. Jinja calls this."""
    length, kept = 0, []
    for part in parts:
        length += len(part)
        if length > _MOST_CHARACTERS:  # at once: the parts may have no end
            check_length(length)
        kept.append(part)
    BUDGET.get().add(length)
    return "".join(kept)


# --- filters -------------------------------------------------------------------------------------

# Filters that take the context are not evaluated as constants while Jinja loads a template.


@pass_context
def shown(_context: Context, value: Any) -> Any:
    """A value that becomes part of the output."""
    if not isinstance(value, str):
        BUDGET.get().weigh(value)
    return value


@pass_context
def _counted(_context: Context, items: Iterable[Any]) -> Iterator[Any]:
    """The items of a loop. Each iteration counts."""
    step = BUDGET.get().step
    for item in items:
        step()
        yield item


@pass_context
def _compared(_context: Context, value: Any) -> Any:
    """A side of a comparison."""
    limits = BUDGET.get()
    if isinstance(value, (str, list, tuple, dict)):
        limits.weigh(value)
    else:
        limits.step()
    return value


@pass_context
def _made(_context: Context, value: Any) -> Any:
    """A value that a slice makes."""
    BUDGET.get().made(value)
    return value


@pass_context
def _concatenated(_context: Context, parts: list[Any]) -> str:
    """The text of a concatenation."""
    limits = BUDGET.get()
    limits.step()
    check_length(sum(map(limits.weigh, parts)))
    text = "".join(map(str, parts))
    limits.made(text)
    return text


COUNTING: Mapping[str, Callable[..., Any]] = {
    "_counted": _counted,
    "_joined": _concatenated,
    "_compared": _compared,
    "_made": _made,
}
"""Filters that count, by the names with which the sandbox puts them into templates."""
