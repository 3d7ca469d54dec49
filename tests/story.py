"""A text that several tests give to real models."""

STORY = (
    "The loom stood in the corner of the long room, and every morning before the light came she "
    "sat down at it and listened. A loom that is well set has a voice of its own: the treadles "
    "knock, the shuttle runs, the reed beats the weft home. "
)
"""Some fifty tokens of any of them."""
