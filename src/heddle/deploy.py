"""`serve run heddle.deploy:app model=NAME`: the application of Heddle for Ray Serve."""

from heddle.extensions.ray.app import app

__all__ = ["app"]
