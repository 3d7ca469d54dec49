"""Fixtures that the tests of extensions share with those of the core."""

from fixtures.commands import loaded, no_frozen_objects, no_variables  # noqa: F401
from fixtures.engines import engine, executor, start  # noqa: F401
from fixtures.guesses import costless_guesses  # noqa: F401
from fixtures.masks import masks_in_time  # noqa: F401
from fixtures.processes import processes  # noqa: F401
from fixtures.servers import serve, shared  # noqa: F401
