"""Definitions in NumPy: the oracle of tests, and the device `reference` to check results."""

from heddle.doors import Device, Extension

EXTENSION = Extension(devices={"reference": Device("heddle.extensions.reference.load:load")})
