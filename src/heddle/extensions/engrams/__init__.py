"""Engram tables: which tokens followed which n-grams in some texts, in files."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.engrams.settings:EngramSettings",),
    parameters=("heddle.extensions.engrams.parameters:EngramParams",),
    apis=("heddle.extensions.engrams.routes:API",),
    commands={"engram": "heddle.extensions.engrams.command:engrams"},
    drafters={"engram": "heddle.extensions.engrams.drafter:drafter"},
    engrams="heddle.extensions.engrams.library:EngramLibrary",
)
