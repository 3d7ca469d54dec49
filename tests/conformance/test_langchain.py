"""LangChain's standard tests of chat models, on its client for OpenAI's API and this server.

The default model is small, so its tests need only what the server enforces, and accept any content.
Tests that need a model which follows instructions use the larger one (`-m large`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from heddle import Engine, EngineConfig
from live_server import live_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langchain_core.language_models import BaseChatModel


# What langchain-openai says of its own ways.
@pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1:UserWarning")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
class Conformance(ChatModelIntegrationTests):
    """The abilities that the server claims. Answers are greedy: always the same."""

    name: ClassVar[str]
    url: ClassVar[str]
    own_params: ClassVar[dict[str, Any]]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def served(cls) -> Iterator[None]:
        config = EngineConfig(slots=4, context=2048)
        with Engine.load(cls.name, config) as engine, live_server(engine) as live:
            cls.url = f"{live.url}/v1"
            yield

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "base_url": self.url,
            "api_key": "unused",
            "model": self.name,
            "max_retries": 0,
            "temperature": 0,
            "max_tokens": 150,
            "stream_usage": True,
            **self.own_params,
        }

    @property
    def has_structured_output(self) -> bool:
        return True


@pytest.mark.model
class TestSmallModel(Conformance):
    """Without what needs a model that calls functions, or writes JSON, because it is told to."""

    name = "smollm2-135m"
    own_params: ClassVar = {"frequency_penalty": 1.5}  # or it repeats itself to the end

    @property
    def has_tool_calling(self) -> bool:
        return False


@pytest.mark.large
class TestLargeModel(Conformance):
    """All of them."""

    name = "qwen2.5-coder-1.5b"
    own_params: ClassVar = {"extra_body": {"dry_multiplier": 0.8}}  # or strings go round in circles

    @property
    def supports_json_mode(self) -> bool:
        return True
