"""Folders of the user, from the text of a setting or of a variable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def user_path(text: str, source: str) -> Path:
    """The path that `text` means. A leading `~` or `~name` becomes a home folder.

    Raises:
        ConfigError: no user has that name; the message names `source`.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{source}: {text!r} names the home folder of an unknown user; write the whole path, or"
            " ./~ for a file name that begins with ~",
            param=source,
        ) from error


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder for downloads: HEDDLE_HOME, else the user's cache folder."""
    home = environ.get("HEDDLE_HOME")
    if home:
        return user_path(home, "HEDDLE_HOME")
    import platformdirs

    return Path(platformdirs.user_cache_dir("heddle"))
