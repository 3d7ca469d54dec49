"""The setting of the page."""

from dataclasses import dataclass

from heddle.config import ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings(ServerSettings):
    """Whether the server has a page."""

    page: bool = setting(True, "network", "show browsers a page with chats at the server's address")
