"""Servers that must not get a load."""

from __future__ import annotations

import pytest

from heddle.errors import ConfigError
from heddle.extensions.bench.targets import check_target

URL = "http://127.0.0.1:8081"


@pytest.mark.parametrize(
    "entry", ["8081", "127.0.0.1", "localhost", "LOCALHOST:8081", "127.0.0.1:8081"]
)
def test_protected_servers_get_no_load(entry: str) -> None:
    with pytest.raises(ConfigError, match=f"protected by --protect {entry}"):
        check_target(URL, ["9", entry], external=True, force=False)
    check_target(URL, [entry], external=False, force=True)


@pytest.mark.parametrize("entry", ["8080", "192.0.2.1", "127.0.0.1:8080", "[::1]:8081"])
def test_others_get_one_if_they_may(entry: str) -> None:
    check_target(URL, [entry], external=True, force=False)
    with pytest.raises(ConfigError, match=r"did not start the server at .*add --external"):
        check_target(URL, [entry], external=False, force=False)


@pytest.mark.parametrize(
    ("url", "port"), [("http://127.0.0.1/v1", "80"), ("https://127.0.0.1", "443")]
)
def test_a_url_without_a_port_has_the_port_of_its_scheme(url: str, port: str) -> None:
    with pytest.raises(ConfigError, match="protected"):
        check_target(url, [port], external=True, force=False)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:80", "http://", "http://h:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not an http or https address"):
        check_target(url, [], external=True, force=False)


@pytest.mark.parametrize("entry", ["http://here", "host:port", ":80"])
def test_what_is_no_host_or_port_cannot_be_protected(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"--protect: .* is not a port, a host or HOST:PORT"):
        check_target(URL, [entry], external=True, force=True)
