"""The web page of a server: chats in the browser."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.page.settings:PageSettings",),
    apis=("heddle.extensions.page.api:API",),
)
