"""Drafters with a model of their own: a small model, or the model's own prediction head."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.drafters.settings:DrafterSettings",),
    followers=(
        "heddle.extensions.drafters.model:follower_of",
        "heddle.extensions.drafters.head:follower_of",
    ),
    shares=("heddle.extensions.drafters.share:share",),
)
