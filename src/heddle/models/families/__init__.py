"""The families of the core: a file for each, whose value `FAMILY` is all that Heddle knows of it.

`heddle.doors` finds the files by being there. Extensions bring further families.
"""
