"""Many machines: replicas of the server on Ray Serve, and streams that outlive them."""

from heddle.doors import Extension

EXTENSION = Extension(commands={"deploy": "heddle.extensions.ray.command:deploy"})
