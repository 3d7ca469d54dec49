"""The settings of events of cached blocks."""

from dataclasses import dataclass

from heddle.config import ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsSettings(ServerSettings):
    """Where events go, and the name of the server in them."""

    kv_events: str = setting(
        "",
        "network",
        "ZeroMQ address for events of cached blocks in vLLM's format, with the tokens of prompts:"
        " tcp://*:5557 = listen, tcp://HOST:5557 = connect; needs heddle[kv-events]; empty = none",
    )
    kv_events_replay: str = setting(
        "",
        "network",
        "ZeroMQ address that repeats events which a subscriber has missed, such as tcp://*:5558;"
        " empty = none",
    )
    kv_events_id: str = setting(
        "",
        "network",
        "name of this server in the topic kv@ID@MODEL of its events; empty = the host's name",
    )
