"""Tests of the extensions. A package, so that no folder of it passes for a module `torch`."""
