"""The log of a process of a deployment: in the files that Ray's dashboard shows."""

from __future__ import annotations

import logging


def log_as_serve(level: str) -> None:
    """Write Heddle's lines from `level` on where Ray Serve writes those of this process.

    So each line has the names of the deployment and the replica, and the id of the request.
    """
    own = logging.getLogger("heddle")
    own.setLevel(level.upper())
    own.handlers = [*logging.getLogger("ray.serve").handlers]
    own.propagate = not own.handlers
