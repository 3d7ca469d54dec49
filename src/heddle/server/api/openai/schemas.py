"""Schemas of chat and text completions, after OpenAI's API reference."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from heddle.parameters import MAX_TOP_LOGPROBS, Api
from heddle.server.generate.chat_fields import (
    CHOICE_SHAPE,
    MAX_TOOLS,
    Messages,
    ReasoningConfig,
    Tools,
)
from heddle.server.generate.fields import MAX_CHOICES, GenerationFields
from heddle.server.generate.parameters import offers
from heddle.server.generate.tools import Chosen
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import FIRST_FAULT, Prompt
from heddle.server.http.schema import Schema


class ChosenFunction(Schema):
    name: str


class FunctionChoice(Schema):
    type: Literal["function"]
    function: ChosenFunction

    @property
    def chosen(self) -> Chosen:
        """See `use_of`."""
        return Chosen.function(self.function.name)


class AllowedFunctions(Schema):
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=MAX_TOOLS), FIRST_FAULT]


class AllowedChoice(Schema):
    """The functions that the answer may call."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions

    @property
    def chosen(self) -> Chosen:
        """See `use_of`."""
        allowed = self.allowed_tools
        return Chosen([one.function.name for one in allowed.tools], allowed.mode == "required")


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<str>")]
    | Annotated[FunctionChoice, Tag("<dict>")]
    | Annotated[AllowedChoice, Tag("<allowed_tools>")],
    CHOICE_SHAPE,
]


THINKING_BUDGETS = ("thinking_token_budget", "thinking_budget_tokens", "thinking_budget")
"""The names of the limit on reasoning tokens in vLLM, in llama.cpp and in DashScope."""
ThinkingBudget = Annotated[int, Field(ge=-1)]
"""-1: no limit."""


@decided(Api.CHAT, "thinking")
class Thinking(Schema):
    """Whether the model reasons, and its most reasoning tokens."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


PromptLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


@decided(Api.CHAT)
@offers(Api.CHAT)
class ChatRequest(GenerationFields):
    """Body of `POST /v1/chat/completions`."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningConfig | None = None
    thinking: Thinking | None = None
    max_completion_tokens: Annotated[int, Field(ge=-1)] | None = None
    thinking_token_budget: ThinkingBudget | None = None
    thinking_budget_tokens: ThinkingBudget | None = None
    thinking_budget: ThinkingBudget | None = None
    enable_thinking: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    verbose: bool | None = None


@decided(Api.COMPLETIONS)
@offers(Api.COMPLETIONS)
class CompletionRequest(GenerationFields):
    """Body of `POST /v1/completions`."""

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    prompt_logprobs: PromptLogprobs | None = None

    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    echo: bool | None = None
    suffix: str | None = None
