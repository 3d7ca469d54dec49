"""Drafters with a model of their own: a small model, or the model's own prediction head."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.drafters.settings:DrafterSettings",),
    batch_drafters=(
        "heddle.extensions.drafters.model:batch_drafter_of",
        "heddle.extensions.drafters.head:batch_drafter_of",
    ),
    shares=("heddle.extensions.drafters.share:share",),
)
