"""What users see first: `heddle` without a command, and advice for those who named no model."""

import sys

from heddle.config import DEFAULT_MODEL
from heddle.doors import extensions

_FIRST = f"""\
heddle chat              talk to {DEFAULT_MODEL} in this terminal
heddle serve             serve it to programs and browsers of this machine
heddle pull ORG/NAME     fetch a model of the Hugging Face hub; chat and serve take its name

{DEFAULT_MODEL} is a tiny model with poor answers."""


def first_page() -> str:
    """The answer to `heddle` without a command: three commands to begin with."""
    return " ".join([_FIRST, *_advice(), "heddle --help lists all commands."])


def _advice() -> list[str]:
    return [one.advice for one in extensions().values() if one.advice]


def chosen(model: str | None) -> str:
    """The model to run. Without a name, the default, and a line on stderr says where to find a
    better one."""
    if model is not None:
        return model
    said = f"No model named: using {DEFAULT_MODEL}, a tiny model with poor answers."
    print(" ".join([said, *_advice()]), file=sys.stderr)
    return DEFAULT_MODEL
