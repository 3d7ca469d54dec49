"""`heddle suggest`, its route, and the advice for users who named no model."""

from heddle.doors import Extension

EXTENSION = Extension(
    commands={"suggest": "heddle.extensions.suggest.command:suggest"},
    apis=("heddle.extensions.suggest.api:API",),
    advice="heddle suggest names better ones for this machine.",
)
