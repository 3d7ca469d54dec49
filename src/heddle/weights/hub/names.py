"""Names of models on the hub: `[hf:]ORG/NAME[@REVISION][:QUANT]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from heddle.errors import ModelSourceError

PREFIX = "hf:"

_PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_NAME = re.compile(
    rf"(?P<repository>{_PART}(?:/{_PART})?)(?:@(?P<revision>\w[\w.-]*(?:/\w[\w.-]*)*))?(?::(?P<quant>[\w.-]+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub.

    Attributes:
        repository: ORG/NAME.
        revision: a branch, a tag or the 40 hexadecimal digits of a commit.
        quant: part of the name of a GGUF file, such as `Q4_K_M`; None: the default.
    """

    repository: str
    revision: str = "main"
    quant: str | None = None

    @property
    def served(self) -> str:
        """The model's name in requests."""
        return self.repository if self.quant is None else f"{self.repository}:{self.quant}"

    @property
    def folder(self) -> str:
        """The name of the repository's folder in the cache."""
        return "models--" + self.repository.replace("/", "--")


def parse(model: str) -> HubName | None:
    """The hub's name that `model` is; None if it looks like a path.

    Raises:
        ModelSourceError: it begins with `hf:`, and what follows is no name.
    """
    text = model.removeprefix(PREFIX)
    match = _NAME.fullmatch(text)
    explicit = model.startswith(PREFIX)
    is_name = match is not None and ".." not in text and "--" not in match["repository"]
    if explicit and not is_name:
        raise ModelSourceError(
            f"{text!r} is not a name of the hub; write {PREFIX}ORG/NAME, {PREFIX}ORG/NAME:QUANT or"
            f" {PREFIX}ORG/NAME@REVISION:QUANT",
            param="model",
        )
    if match is None or not is_name:
        return None
    if not explicit and ("/" not in match["repository"] or text.endswith(".gguf")):
        return None
    return HubName(match["repository"], match["revision"] or "main", match["quant"])
