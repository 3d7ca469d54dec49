"""Sight of an engine at work: steps, requests, cache, rates, as events."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.sight.settings:SightSettings",),
    apis=("heddle.extensions.sight.api:API",),
)
