"""The command line in this process, with a fake model behind it."""

from fixtures.commands import executor, loaded, no_frozen_objects, no_variables  # noqa: F401
