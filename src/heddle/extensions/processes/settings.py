"""The setting of processes that compute."""

from dataclasses import dataclass

from heddle.config import EngineSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings(EngineSettings):
    """How long processes that compute are waited for."""

    rank_timeout: int = setting(
        60,
        "devices",
        "longest time, in s, that a process of --device cuda or of --tensor-parallel may be silent,"
        " or wait for the others; then the model fails",
        low=1,
        high=3600,
    )
