"""`heddle suggest`, and the advice for users who named no model."""

from heddle.doors import Extension

EXTENSION = Extension(
    commands={"suggest": "heddle.extensions.suggest.command:suggest"},
    advice="heddle suggest names better ones for this machine.",
)
