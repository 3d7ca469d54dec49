"""Fetches pictures from addresses in requests, from public hosts only.

A client could have the server ask hosts that only the server reaches (SSRF). So a host's name is
resolved once, all addresses that it has must be public, and the connection goes to one of these
addresses. Each redirect is checked in the same way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING

import httpx2

from heddle.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.sent_pictures import SentPicture

MOST_BYTES = 32 * 1024**2
"""Most bytes of a picture's file."""
MOST_BYTES_TOGETHER = 64 * 1024**2
"""Most bytes of all files that the server fetches for one request."""
SECONDS = 20.0
"""Most seconds that the fetches of one request take together."""
_REDIRECTS = 3
_AT_ONCE = 8
"""Fetches of a request that run together."""

_OTHERS = tuple(
    map(
        ipaddress.ip_network,
        (
            *("64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
            *("fec0::/10", "192.0.0.0/24"),
        ),
    )
)
"""Networks that Python may call global: those of IPv6 whose addresses hold addresses of IPv4
(NAT64, Teredo, 6to4), and two that older versions of Python do not know as private."""


class _Fetches:
    """The fetches of one request."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._left = MOST_BYTES_TOGETHER

    async def file_of(self, sent: SentPicture) -> bytes:
        """The file at the address of a picture.

        Raises:
            InvalidRequestError: the address is not public, or does not answer with a file.
        """
        async with self._places:
            try:
                url = httpx2.URL(sent.source)
                for _ in range(_REDIRECTS + 1):
                    found = await self._answer(sent, url)
                    if isinstance(found, bytes):
                        return found
                    url = url.join(found)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
                raise _refused(sent, f"cannot be fetched: {type(error).__name__}") from error
        raise _refused(sent, f"redirects more than {_REDIRECTS} times")

    async def _answer(self, sent: SentPicture, url: httpx2.URL) -> bytes | str:
        """The file at an address, or where the address redirects to."""
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise _refused(sent, "leads to an address that is not http or https, or has a password")
        request = self._client.build_request(
            "GET",
            url.copy_with(host=await _public_address(sent, url)),
            headers={"host": url.netloc.decode("ascii"), "accept": "image/*"},
            extensions={"sni_hostname": url.host},  # the certificate is of the name
        )
        answer = await self._client.send(request, stream=True)
        try:
            if answer.has_redirect_location:
                return answer.headers["location"]
            if answer.status_code != httpx2.codes.OK:
                raise _refused(sent, f"answers with status {answer.status_code}")
            parts, size = [], 0
            async for part in answer.aiter_raw():  # a compressed answer stays so, and is no picture
                size += len(part)
                self._left -= len(part)
                if size > MOST_BYTES or self._left < 0:
                    raise _refused(
                        sent,
                        f"has more than {MOST_BYTES:,} bytes, or with the others"
                        f" of the request more than {MOST_BYTES_TOGETHER:,}",
                    )
                parts.append(part)
            return b"".join(parts)
        finally:
            await answer.aclose()


async def fetched(sent: Sequence[SentPicture]) -> dict[SentPicture, bytes]:
    """The files at the addresses of pictures.

    Raises:
        InvalidRequestError: an address is not public, or does not answer with a file in time.
    """
    headers = {"accept-encoding": "identity", "user-agent": "heddle"}
    async with httpx2.AsyncClient(trust_env=False, timeout=SECONDS, headers=headers) as client:
        try:
            async with asyncio.timeout(SECONDS):
                files = await asyncio.gather(*map(_Fetches(client).file_of, sent))
        except TimeoutError:
            raise _refused(sent[0], f"did not arrive within {SECONDS:g} s") from None
    return dict(zip(sent, files, strict=True))


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    is_other = any(ip in network for network in _OTHERS)
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or is_other)


async def _public_address(sent: SentPicture, url: httpx2.URL) -> str:
    """The IP address to connect to.

    Raises:
        InvalidRequestError: an address of the host is not public.
    """
    loop = asyncio.get_running_loop()
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    found = await loop.getaddrinfo(url.raw_host.decode("ascii"), port, type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    if not addresses or not all(map(is_public, addresses)):
        raise _refused(sent, "leads to a host that is not public")
    return addresses[0]


def _refused(sent: SentPicture, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{sent.param} {why}. Send the picture as data:image/png;base64,...", param=sent.param
    )
