"""Additions to Heddle's core. Each package joins through the doors of `heddle.doors`."""
