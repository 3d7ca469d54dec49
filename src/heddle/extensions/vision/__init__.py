"""Pictures in prompts: reading them, and the eyes of models that see them."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=(
        "heddle.extensions.vision.settings:EyesSettings",
        "heddle.extensions.vision.settings:FetchSettings",
    ),
    eyes="heddle.extensions.vision.opening:eyes_of_model",
    companions=("heddle.extensions.vision.mmproj:fetched_beside",),
    picture_reader="heddle.extensions.vision.reader:READER",
)
