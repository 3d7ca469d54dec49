"""LangChain's standard tests of chat models and embeddings, on its client for Ollama's API.

The default model is small, so its tests need only what the server enforces, and accept any content.
Tests that need a model which follows instructions use the larger one (`-m large`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import httpx
import pytest
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
)
from ollama._client import BaseClient

from heddle import Engine, EngineConfig
from live_server import KEYS, live_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import BaseChatModel


WITH_KEY = {"headers": {"authorization": f"Bearer {KEYS[0]}"}}
"""What a client of Ollama's needs for a server with keys."""


@pytest.fixture(autouse=True)
async def closed_clients(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Closes the connections of Ollama's clients, which LangChain leaves open."""
    made: list[httpx.Client | httpx.AsyncClient] = []

    def note(client: Any, *arguments: Any, **options: Any) -> None:
        begin(client, *arguments, **options)
        made.append(client._client)

    begin = BaseClient.__init__
    monkeypatch.setattr(BaseClient, "__init__", note)
    yield
    for client in made:
        if isinstance(client, httpx.AsyncClient):
            await client.aclose()
        else:
            client.close()


class Served:
    """Serves a model to the tests of a class."""

    name: ClassVar[str] = "smollm2-135m"
    url: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def served(cls) -> Iterator[None]:
        config = EngineConfig(slots=4, context=2048)
        with Engine.load(cls.name, config) as engine, live_server(engine) as live:
            cls.url = live.url
            yield


class Conformance(Served, ChatModelIntegrationTests):
    """The abilities that the server claims. Answers are greedy: always the same."""

    own_params: ClassVar[dict[str, Any]] = {}

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOllama

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "base_url": self.url,
            "model": self.name,
            "temperature": 0,
            "num_predict": 150,
            "client_kwargs": WITH_KEY,
            **self.own_params,
        }

    @property
    def has_tool_choice(self) -> bool:
        return False  # Ollama's API has none


@pytest.mark.model
class TestSmallModel(Conformance):
    """Without what needs a model that calls functions, or writes JSON, because it is told to."""

    own_params: ClassVar = {"repeat_penalty": 1.3}  # or it repeats itself to the end

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return True

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "json_schema"}


@pytest.mark.large
class TestLargeModel(Conformance):
    """All of them."""

    name = "qwen2.5-coder-1.5b"
    own_params: ClassVar = {"repeat_penalty": 1.05}

    @property
    def supports_json_mode(self) -> bool:
        return True


@pytest.mark.model
class TestEmbeddings(Served, EmbeddingsIntegrationTests):
    """Vectors of one text and of several, synchronous and asynchronous."""

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OllamaEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"base_url": self.url, "model": self.name, "client_kwargs": WITH_KEY}
