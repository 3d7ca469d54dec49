"""How long the model reasons: turns a body's fields into template variables and a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heddle.server.http.record import record_of
from heddle.text.chat.thinking import OFF
from heddle.text.constrained.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from starlette.types import Scope

    from heddle.engine import Engine
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served
    from heddle.text.chat.dialect import Dialect
    from heddle.text.parsing.reading import Reading

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReasoningFields:
    """The reasoning fields of a body. Fields without effect count as ignored.

    Attributes:
        effort: how long to reason; "none": not at all. None: the body does not say it.
        effort_param: the field with the effort.
        enabled: whether to reason. None: the body does not say it.
        enabled_param: the field that says whether to reason.
        most: most reasoning tokens; None: no limit.
        most_param: the field with the limit.
    """

    effort: str | None = None
    effort_param: str = ""
    enabled: bool | None = None
    enabled_param: str = ""
    most: int | None = None
    most_param: str = ""

    def variables(self, engine: Engine, scope: Scope) -> Json:
        """The template variables for these fields. Empty if the template uses none of them."""
        if engine.model.template is None:
            return {}
        dialect = engine.model.template.dialect
        self._note_ignored(dialect, scope)
        return dialect.reasoning.values(enabled=self._reasons, effort=self.effort, most=self.most)

    def bound(
        self, request: GenerationRequest, reading: Reading, served: Served, scope: Scope
    ) -> GenerationRequest:
        """Limit the reasoning of each choice of `request`.

        If reasoning is off and the prompt does not close it, the limit is 0. The limit counts as
        ignored if the model does not reason, or if its tokens cannot spell the closing mark.
        """
        model = served.engine.model
        assert model.template is not None, "the template wrote the prompt"
        dialect = model.template.dialect
        most, param = self.most, self.most_param
        if self.enabled is False or (self._reasons is False and not dialect.reasoning.efforts):
            if reading.marks is None:
                return request
            most, param = 0, self.effort_param if self.enabled is None else self.enabled_param
        if most is None or param.partition(".")[0] in record_of(scope).ignored:
            return request
        thinking = ThinkingBudget.of(most, reading, model.tokenizer)
        # If the prompt already closes the reasoning, the answer has none and follows any bound.
        if thinking is None and (reading.marks is not None or dialect.marks is None):
            record_of(scope).ignored.append(param)
        return replace(request, thinking=thinking)

    @property
    def _reasons(self) -> bool | None:
        """Whether to reason. None: the fields do not say it."""
        if self.enabled is not None or self.effort is None:
            return self.enabled
        return self.effort != OFF

    def _note_ignored(self, dialect: Dialect, scope: Scope) -> None:
        if self.enabled and dialect.marks is None:
            record_of(scope).ignored.append(self.enabled_param)
        if self.effort not in (None, OFF) and not dialect.reasoning.efforts:
            record_of(scope).ignored.append(self.effort_param)


NO_WISH = ReasoningFields()
"""The fields of a body that says nothing about reasoning."""
