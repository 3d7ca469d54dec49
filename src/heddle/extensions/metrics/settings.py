"""The settings of metrics."""

from dataclasses import dataclass

from heddle.config import ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings(ServerSettings):
    """Whether the route answers, and with which names."""

    metrics_route: bool = setting(True, "logging", "answer GET /metrics; off = 501")
    metric_names: str = setting(
        "heddle",
        "logging",
        "names of metrics: heddle; vllm = also vLLM's, which endpoint pickers read; llamacpp = also"
        " llama.cpp's, of the default model",
        choices=("heddle", "vllm", "llamacpp"),
    )
