"""Jinja's sandbox with bounds on the work of a template.

A template comes from a model file that may not be trusted. Jinja's sandbox keeps a template from
Python's internals, but does not stop an endless template. This module counts loops, calls and
concatenations. It refuses numbers that would make a result large before computing the result.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from time import thread_time
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jinja2.runtime import Context

BUDGET = "_budget"
"""Name of the template variable that holds the budget of one rendering."""

_SECONDS = 2.0
"""Processor time that one rendering may take. A conversation of 1,000 messages takes 0.05 s."""

_MOST_CHARACTERS = 32 << 20
_MOST_BITS = 4096
_MOST_NUMBER = 100_000
"""The largest number, such as a width, that a template may pass to a function or a filter."""

_LARGE_WIDTH = re.compile(r"\*|[0-9]{5}")


class Budget:
    """The processor time that one rendering has left."""

    def __init__(self) -> None:
        self._until = thread_time() + _SECONDS
        self._steps = 0

    def step(self) -> None:
        """Count an iteration, a call or an operation.

        Raises:
            TemplateError: the rendering took too long.
        """
        self._steps += 1
        if self._steps % 64 == 0:
            self.check()

    def check(self) -> None:
        """Check the processor time used so far.

        Raises:
            TemplateError: the rendering took too long.
        """
        if thread_time() > self._until:
            raise TemplateError(f"it takes more than {_SECONDS:g} s")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment with bounds. Each rendering needs a `Budget` in the variable `BUDGET`."""

    # Jinja does not fold constants of intercepted operators.
    intercepted_binops = frozenset({"**", "*", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"]
        for name, function in self.filters.items():
            self.filters[name] = _checked(function)
        self.filters |= {"_counted": _counted, "_joined": _joined}

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter. Calls of it check the numbers that they pass."""
        self.filters[name] = _checked(function)

    def bounded(self, source: str) -> nodes.Template:
        """The parsed template. Its loops and concatenations count against the budget."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            assert isinstance(loop.iter, nodes.Expr)
            loop.iter = _filtered(loop.iter, "_counted")
        for parent in tree.find_all(nodes.Node):
            _replace_concatenations(parent)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        context[BUDGET].step()
        _check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        context[BUDGET].step()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `str.format`
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_string_method(method.__name__, owner, arguments, named)
        if function is not context["range"]:
            _check_numbers((*arguments, *named.values()))
        return super().call(context, function, *arguments, **named)


def _filtered(expression: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(expression, name, [], [], None, None, lineno=expression.lineno)


def _replace_concatenations(parent: nodes.Node) -> None:
    def replaced(child: Any) -> Any:
        if not isinstance(child, nodes.Concat):
            return child
        return _filtered(nodes.List(child.nodes, lineno=child.lineno), "_joined")

    for field, value in parent.iter_fields():
        many = isinstance(value, list)
        setattr(parent, field, [replaced(child) for child in value] if many else replaced(value))


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Any:
    budget = context[BUDGET]

    def counted() -> Iterator[Any]:
        for item in items:
            budget.step()
            yield item

    return counted()


@pass_context
def _joined(context: Context, parts: list[Any]) -> str:
    context[BUDGET].step()
    texts = [str(part) for part in parts]
    check_length(sum(map(len, texts)))
    return "".join(texts)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks the budget and refuses large numbers in its extra arguments.

    The filter takes the context, so that Jinja does not evaluate it as a constant while it loads a
    template.
    """
    passed = getattr(function, "jinja_pass_arg", None)
    name = getattr(function, "__name__", "").removeprefix("do_")

    @pass_context
    def checked(context: Context, subject: Any, *arguments: Any, **named: Any) -> Any:
        context[BUDGET].check()
        _check_numbers((*arguments, *named.values()))
        if isinstance(subject, str):
            _check_string_method(name, subject, arguments, named)
        if passed is None:
            return function(subject, *arguments, **named)
        environment, evaluation = context.environment, context.eval_ctx
        first = {"context": context, "eval_context": evaluation, "environment": environment}
        return function(first[passed.name], subject, *arguments, **named)

    return checked


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        _check_format(left)
    if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        check_length(len(left) + len(right))
    if operator == "*":
        for items, times in ((left, right), (right, left)):
            if isinstance(items, Sized) and isinstance(times, int):
                check_length(len(items) * times)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        raised = operator == "**"
        bits = left.bit_length() * abs(right) if raised else left.bit_length() + right.bit_length()
        if bits > _MOST_BITS:
            raise TemplateError(f"it computes a number of more than {_MOST_BITS} bits")


def _check_string_method(
    name: str, text: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    if name in ("format", "format_map"):
        _check_format(text)
    if name == "replace" and len(arguments) > 1:
        check_length(text.count(str(arguments[0])) * len(str(arguments[1])))
    if name == "join" and arguments and isinstance(arguments[0], Sized):
        check_length(len(text) * len(arguments[0]))
    if name == "expandtabs":
        tab = next((one for one in (*arguments, *named.values()) if isinstance(one, int)), 8)
        check_length(text.count("\t") * tab)


def _check_format(text: str) -> None:
    if _LARGE_WIDTH.search(text):
        raise TemplateError(f"it formats with a width that is too large: {text!r:.60}")


def check_length(length: int) -> None:
    """
    Raises:
        TemplateError: `length` characters or elements are too many for one value.
    """
    if length > _MOST_CHARACTERS:
        raise TemplateError(
            f"it makes a value of {length:,} elements; the limit is {_MOST_CHARACTERS:,}"
        )


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > _MOST_NUMBER:
            raise TemplateError(f"it passes a function a number beyond {_MOST_NUMBER:,}")
