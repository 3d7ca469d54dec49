"""Pictures in prompts: the eyes of models that see them."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.vision.settings:EyesSettings",),
    eyes="heddle.extensions.vision.opening:eyes_of_model",
    companions=("heddle.extensions.vision.mmproj:fetched_beside",),
)
