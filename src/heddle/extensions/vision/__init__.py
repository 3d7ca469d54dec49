"""Pictures in prompts: the eyes of models that see them."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.vision.settings:EyesSettings",),
    companions=("heddle.extensions.vision.mmproj:fetched_beside",),
)
