"""`heddle top`: engines at work, in a terminal."""

from heddle.doors import Extension

EXTENSION = Extension(commands={"top": "heddle.extensions.top.command:top"})
