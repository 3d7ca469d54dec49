"""Fixtures of the tests on the default model."""

from fixtures.guesses import costless_guesses  # noqa: F401
