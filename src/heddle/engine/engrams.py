"""Engram tables as the core sees them: who opens them, and the bias of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from heddle.doors import extensions, refer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.config import EngineConfig
    from heddle.loading.loaded_model import LoadedModel
    from heddle.sampling_params import SamplingParams
    from heddle.token_rules import SamplerRule


class ModelEngrams(Protocol):
    """The tables that requests to one model may name. Any thread may call all methods."""

    @property
    def library(self) -> EngramLibrary:
        """The tables, of all models of the process."""
        ...

    def rules(self, params: SamplingParams) -> tuple[SamplerRule, ...]:
        """The rules that `params` ask for; none if they name no table.

        Raises:
            InvalidRequestError: a table is unknown, or was built for another vocabulary.
        """
        ...


class EngramLibrary(Protocol):
    """The open tables of a process, by the names that requests use."""

    def of_model(self, model: LoadedModel) -> ModelEngrams:
        """The tables as requests to `model` may name them."""
        ...

    def check(self, models: Sequence[ModelEngrams]) -> None:
        """Check that each table fits one of these models.

        Raises:
            ConfigError: a table fits none; names both fingerprints.
        """
        ...


def open_engrams(config: EngineConfig) -> EngramLibrary:
    """The tables of the settings.

    Raises:
        ConfigError: a setting is wrong.
        EngramError, EngramFileError: a table cannot be read, or is damaged.
    """
    for extension in extensions().values():
        if extension.engrams:
            library: EngramLibrary = refer(extension.engrams).of(config)
            return library
    return _NoEngrams()


class _NoEngrams:
    """The library, and the tables of each model, where no extension opens any."""

    @property
    def library(self) -> EngramLibrary:
        return self

    def of_model(self, model: LoadedModel) -> ModelEngrams:
        return self

    def rules(self, params: SamplingParams) -> tuple[SamplerRule, ...]:
        return ()

    def check(self, models: Sequence[ModelEngrams]) -> None:
        """Nothing to do: there are no tables."""
