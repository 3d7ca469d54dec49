"""`heddle doctor`: what of this machine and of the settings stands in the way of a server."""

from heddle.doors import Extension

EXTENSION = Extension(commands={"doctor": "heddle.extensions.doctor.command:doctor"})
