"""The fields of Alibaba's Model Studio (DashScope) for reasoning, which clients of Qwen send."""

from __future__ import annotations

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import served

ROWS = (
    *served(Api.CHAT, "enable_thinking", doc="as the template's variables"),
    *served(Api.CHAT, "thinking_budget", doc="a model that does not reason: no effect"),
)
