"""The template variables that say whether, how hard and how long the model reasons.

Each family has names and values of its own, and its template shows them. A wish that a template has
no variable for changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

SWITCHES: Mapping[str, tuple[Any, Any]] = {
    "enable_thinking": (False, True),
    "thinking": (False, True),
    "reasoning": (False, True),
    "thinking_mode": ("disabled", "enabled"),
}
"""Variables that turn reasoning off and on, with both values: of Qwen3 and GLM; of DeepSeek V3.1,
Granite 3.3 and Kimi K3; of Cohere 2; of MiniMax M3."""

EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
"""Variables for how hard the model reasons: of most families; of Kimi K3; of Muse."""

BUDGETS = ("thinking_budget",)
"""Variables for the most reasoning tokens: of Seed-OSS, where 0 turns reasoning off."""

OFF = "none"
"""The effort that turns reasoning off."""

_SCALE = (OFF, "minimal", "low", "medium", "high", "xhigh", "max")
_NAMES_OF_OFF = (OFF, "no_think", "off")


@dataclass(frozen=True, slots=True)
class ReasoningVariables:
    """The variables of one template.

    Attributes:
        switches: names of `SWITCHES`.
        efforts: names of `EFFORTS`, with the values that the template takes; empty: any.
        budgets: names of `BUDGETS`.
    """

    switches: Sequence[str] = ()
    efforts: Mapping[str, Sequence[str]] | None = None
    budgets: Sequence[str] = ()

    @classmethod
    def of(
        cls, names: Collection[str], taken: Mapping[str, Sequence[str]], trained: Sequence[str]
    ) -> ReasoningVariables:
        """The variables of a template.

        Args:
            names: the names that its source uses.
            taken: the values that it takes for some of them; see `taken_values`.
            trained: efforts that the family was trained on, if the template takes any text.
        """
        return cls(
            [name for name in SWITCHES if name in names],
            {name: taken.get(name) or trained for name in EFFORTS if name in names},
            [name for name in BUDGETS if name in names],
        )

    def values(
        self, *, enabled: bool | None = None, effort: str | None = None, most: int | None = None
    ) -> dict[str, Any]:
        """The variables for a wish: whether to reason, how hard, and for at most how many tokens.

        Where only an effort turns reasoning on and off, it follows `enabled`.
        """
        found = {name: SWITCHES[name][enabled] for name in self.switches if enabled is not None}
        for name, taken in (self.efforts or {}).items():
            wish = effort
            if wish is None and enabled is not None and any(one in taken for one in _NAMES_OF_OFF):
                wish = "high" if enabled else OFF
            if wish is not None and (value := _nearest(wish, taken)) is not None:
                found[name] = value
        most = 0 if enabled is False else most
        return found | ({} if most is None else dict.fromkeys(self.budgets, most))

    def translated(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The variables that a request gives, and what they mean for this template.

        Clients send the name that another family has, such as `enable_thinking` for `thinking`.
        """

        def first(names: Collection[str], kind: type) -> Any:
            return next((given[one] for one in names if type(given.get(one)) is kind), None)

        enabled, effort = first(SWITCHES, bool), first(EFFORTS, str)
        enabled = effort not in _NAMES_OF_OFF if enabled is None and effort else enabled
        wish = self.values(enabled=enabled, effort=effort, most=first(BUDGETS, int))
        return {**wish, **given}


def taken_values(tree: nodes.Template) -> dict[str, Sequence[str]]:
    """The values that a template takes for a variable: those of a test `name not in [...]`."""
    found: dict[str, Sequence[str]] = {}
    for test in tree.find_all(nodes.Compare):
        [operand, *_] = test.ops
        if operand.op == "notin" and isinstance(test.expr, nodes.Name):
            values = [one.value for one in operand.expr.find_all(nodes.Const)]
            found[test.expr.name] = [one for one in values if isinstance(one, str)]
    return found


def _nearest(asked: str, taken: Sequence[str]) -> str | None:
    """The value of `taken` that is nearest to an effort; of two, the higher. None: not known."""
    if not taken or asked in taken:
        return asked
    if asked not in _SCALE:
        return None
    if asked == OFF and (off := next((one for one in _NAMES_OF_OFF if one in taken), None)):
        return off
    rank = _SCALE.index(asked)
    known = [place for place, one in enumerate(_SCALE) if one in taken and one != OFF]
    return _SCALE[min(known, key=lambda one: (abs(one - rank), -one))] if known else None
