"""Jinja's sandbox with bounds on the work of a template.

A template comes from a model file that may not be trusted. Jinja's sandbox keeps a template from
Python's internals, but does not stop an endless template. This module counts loops, calls,
comparisons, slices and concatenations (`budget.py`). It refuses what would make a result large
before it computes the result. Only methods that chat templates need may be called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from jinja2 import nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from heddle.text.chat.budget import BUDGET, COUNTING, joined, shown
from heddle.text.chat.sizes import OwnList, check_call, check_filter, check_numbers, check_operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2.runtime import Context

_REMOVED_FILTERS = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters for web pages. Some take quadratic time. No known chat template uses them."""


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment with bounds. `budget.render` renders its templates."""

    # Jinja does not fold constants of intercepted operators.
    intercepted_binops = frozenset({"**", "*", "+", "%"})
    concat = staticmethod(joined)

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=shown, **options)
        del self.globals["lipsum"]
        self.globals["range"] = _range
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name, function in self.filters.items():
            self.filters[name] = _checked(name, function)
        self.filters |= {**COUNTING, "_own": _own}
        for name, test in self.tests.items():
            if not hasattr(test, "jinja_pass_arg"):
                self.tests[name] = _checked_test(cast("Callable[..., bool]", test))

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter. Calls of it check the numbers that they pass."""
        self.filters[name] = _checked(name, function)

    def bounded(self, source: str) -> nodes.Template:
        """The parsed template. Its loops and operations count against the budget."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            assert isinstance(loop.iter, nodes.Expr)
            loop.iter = _filtered(loop.iter, "_counted")
        for comparison in tree.find_all(nodes.Compare):
            comparison.expr = _filtered(comparison.expr, "_compared")
            for operand in comparison.ops:
                operand.expr = _filtered(operand.expr, "_compared")
        for parent in list(tree.find_all(nodes.Node)):
            _replace_operations(parent)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, owner: Any, name: str, value: Any) -> bool:
        """Whether a template may read an attribute. It may change lists that it has made."""
        changes = isinstance(owner, OwnList) and name in ("append", "pop")
        return changes or super().is_safe_attribute(owner, name, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        BUDGET.get().step()
        check_operation(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        BUDGET.get().made(result)
        return result

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        arguments = tuple(map(BUDGET.get().listed, arguments))
        check_call(function, arguments, named)
        if function is not _range:
            check_numbers((*arguments, *named.values()))
        result = super().call(context, function, *arguments, **named)
        BUDGET.get().made(result)
        return result


def _range(*arguments: int) -> range:
    """`range`. All calls of one rendering share its budget."""
    return BUDGET.get().range(*arguments)


@pass_context
def _own(_context: Context, items: list[Any]) -> OwnList:
    """A list that the template writes."""
    return OwnList(items)


def _filtered(expression: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(expression, name, [], [], None, None, lineno=expression.lineno)


def _replace_operations(parent: nodes.Node) -> None:
    """Replace concatenations, slices and empty lists below `parent` by filters.

    The filters count what they make. A template appends to lists that were empty.
    """

    def replaced(child: Any) -> Any:
        if isinstance(child, nodes.List) and not child.items:
            return _filtered(child, "_own")
        if isinstance(child, nodes.Concat):
            return _filtered(nodes.List(child.nodes, lineno=child.lineno), "_joined")
        if isinstance(child, nodes.Getitem) and isinstance(child.arg, nodes.Slice):
            return _filtered(child, "_made")
        return child

    if isinstance(parent, nodes.Filter) and parent.name in ("_made", "_own"):
        return
    for field, value in parent.iter_fields():
        many = isinstance(value, list)
        setattr(parent, field, [replaced(child) for child in value] if many else replaced(value))


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks the budget, its values and its result."""
    passed = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def checked(context: Context, subject: Any, *arguments: Any, **named: Any) -> Any:
        BUDGET.get().check()
        check_numbers((*arguments, *named.values()))
        subject = check_filter(name, subject, arguments, named)
        if passed is None:
            result = function(subject, *arguments, **named)
        else:
            environment, evaluation = context.environment, context.eval_ctx
            first = {"context": context, "eval_context": evaluation, "environment": environment}
            result = function(first[passed.name], subject, *arguments, **named)
        BUDGET.get().made(result)
        return result

    return checked


def _checked_test(test: Callable[..., bool]) -> Callable[..., bool]:
    """Return a test that counts what it reads. Tests with arguments compare."""

    @pass_context
    def checked(_context: Context, value: Any, *arguments: Any) -> bool:
        limits = BUDGET.get()
        for one in (value, *arguments):
            if isinstance(one, str) or (arguments and isinstance(one, (list, tuple, dict))):
                limits.weigh(one)
        limits.step()
        return test(value, *arguments)

    return checked
