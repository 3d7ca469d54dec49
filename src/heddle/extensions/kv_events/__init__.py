"""Events of cached blocks in vLLM's format over ZeroMQ (`--kv-events`)."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.kv_events.settings:KvEventsSettings",),
    apis=("heddle.extensions.kv_events.api:API",),
)
