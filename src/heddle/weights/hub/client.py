"""Asks the hub what a repository holds, and says in plain words why it refuses."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from heddle.errors import ModelSourceError
from heddle.weights.hub.transfer import HubFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heddle.hub_place import HubPlace
    from heddle.weights.hub.names import HubName

_TIMEOUT = 30
_LOG_IN = "set HF_TOKEN to a token of an account that has access, or run `hf auth login`"


class UnreachableError(ModelSourceError):
    """The hub cannot be reached or fails. What is in the cache is still good."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What one commit of a repository holds.

    Attributes:
        commit: its 40 hexadecimal digits.
        files: by name.
    """

    commit: str
    files: Mapping[str, HubFile]


def list_files(name: HubName, place: HubPlace) -> Listing:
    """The files of the commit that the revision of `name` is now.

    Raises:
        UnreachableError: the hub cannot be reached or fails.
        ModelSourceError: there is no such repository or revision, or no access to it.
    """
    with plain_errors(name, place):
        api = HfApi(place.endpoint, library_name="heddle")
        info = api.model_info(
            name.repository, revision=name.revision, files_metadata=True, timeout=_TIMEOUT
        )
    files = {}
    for entry in info.siblings or ():
        digest = entry.lfs.sha256 if entry.lfs else entry.blob_id
        if digest is not None and entry.size is not None:
            files[entry.rfilename] = HubFile(entry.rfilename, entry.size, digest)
    if info.sha is None or any(".." in file.split("/") or file.startswith("/") for file in files):
        raise ModelSourceError(f"{place.endpoint} gave no sound list of {name.repository}'s files")
    return Listing(info.sha, files)


@contextmanager
def plain_errors(name: HubName, place: HubPlace) -> Iterator[None]:
    """Turn errors of the hub's client into errors that say what to do.

    Raises:
        UnreachableError: the hub cannot be reached or fails.
        ModelSourceError: there is no such repository or revision, or no access to it.
    """
    try:
        yield
    except HfHubHTTPError as error:
        raise _refusal(error, name, place) from error
    except httpx2.HTTPError as error:
        raise UnreachableError(
            f"cannot fetch {name.served}: {place.endpoint} cannot be reached"
            f" ({error or type(error).__name__}); check the network, or use a model that is in the"
            " cache (`heddle list`)",
            param="model",
        ) from error


def _refusal(error: HfHubHTTPError, name: HubName, place: HubPlace) -> ModelSourceError:
    status, page = error.response.status_code, f"{place.endpoint}/{name.repository}"
    match error:
        case GatedRepoError():
            problem = f"{page} is gated; ask for access on that page, then {_LOG_IN}"
        case RevisionNotFoundError():
            problem = f"{page} has no revision {name.revision!r}; leave it out for the newest"
        case RepositoryNotFoundError():
            problem = f"{page} does not exist, or is private; check the name, or {_LOG_IN}"
        case _ if status in (401, 403):
            problem = f"{page} refuses access (status {status}); {_LOG_IN}"
        case _ if status == httpx2.codes.NOT_FOUND:
            problem = f"{error.response.url} does not exist; check the name and the revision"
        case _:
            return UnreachableError(_failure(error, name, place), param="model")
    return ModelSourceError(f"cannot fetch {name.served}: {problem}", param="model")


def _failure(error: HfHubHTTPError, name: HubName, place: HubPlace) -> str:
    status = error.response.status_code
    if status != httpx2.codes.TOO_MANY_REQUESTS:
        return f"cannot fetch {name.served}: {place.endpoint} fails with {status}; try again later"
    wait = error.response.headers.get("Retry-After", "")
    when = f"in {wait} s" if wait.isdecimal() else "later"
    return (
        f"cannot fetch {name.served}: {place.endpoint} gets too many requests from here (429); try"
        f" again {when}, or log in, which raises the limit"
    )
