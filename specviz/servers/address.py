"""Which servers may be asked. On a public page only those that its owner lists: a visitor's address is otherwise a way
into the network that the page runs in."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import httpx

from specviz.records.errors import SpecvizError, quoted

#: Ends of addresses that people copy from a manual; the server's root is what is left.
_ENDS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1"),
    *("/chat/completions", "/completions", "/completion", "/generate", "/metrics", "/health", "/props"),
)

#: Of a higher one the system takes the rest by 65,536, where somebody else may listen.
HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """A server's root. pinned: the IP address that its name led to when it was checked, if connections must go there:
    a name that is looked up again may lead elsewhere."""

    url: httpx.URL
    pinned: str | None = None

    @property
    def shown(self) -> str:
        """As it stands in sentences and files: without anything secret."""
        return str(self.url).rstrip("/")

    def at(self, path: str) -> httpx.URL:
        """The address of a path, at the IP address that was checked."""
        url = self.url.copy_with(path=self.url.path.rstrip("/") + path)
        return url if self.pinned is None else url.copy_with(host=self.pinned)


def address_of(text: str, listed: Collection[str] | None = None) -> Address:
    """The server at an address that somebody typed: with or without ``http://``, an API's path or a slash at its end.

    listed: addresses of a public page's servers; any other is refused. None allows all. Raises SpecvizError (field
    ``server``).
    """
    url = _url(text)
    if listed is None:
        return Address(url)
    entries = [_url(entry) for entry in listed]
    if url not in entries:
        raise SpecvizError(
            "This page may only ask the servers that its owner lists ({servers}); run specviz yourself to ask others.",
            "server",
            servers=", ".join(str(entry).rstrip("/") for entry in entries) or "none",
        )
    return Address(url, _public_address(url))


def _url(text: str) -> httpx.URL:
    text = text.strip() if isinstance(text, str) else ""
    if not text:
        raise SpecvizError("Enter the address of a server, such as http://localhost:8080.", "server")
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
        if (url.port or 0) > HIGHEST_PORT:
            raise ValueError(f"a port is at most {HIGHEST_PORT}")
        url.host.encode("idna")  # as it is looked up: no part of a name may be empty, or longer than 63 characters
    except (httpx.InvalidURL, ValueError) as error:
        raise SpecvizError(
            "{address} is not an address: {reason}.", "server", address=quoted(text), reason=str(error)
        ) from error
    if url.scheme not in ("http", "https") or not url.host or any(map(str.isspace, text)):
        raise SpecvizError(
            "A server's address begins with http:// or https:// and names a host; {address} does not.",
            "server",
            address=quoted(text),
        )
    if url.userinfo:
        raise SpecvizError("A name and a password do not belong into an address; a key has its own field.", "server")
    path = url.path.rstrip("/")
    path = next((path.removesuffix(end) for end in _ENDS if path.endswith(end)), path)
    return httpx.URL(scheme=url.scheme, host=url.host, port=url.port, path=path or "/")


def _public_address(url: httpx.URL) -> str | None:
    """Where a listed name leads, once and for all; None for an IP address or this machine itself, which its owner
    listed as such. A name must not lead into a private network."""
    if url.host == "localhost" or _literal(url.host):
        return None
    found = _looked_up(url.host, url.port or (443 if url.scheme == "https" else 80))
    if not found or not all(ipaddress.ip_address(address).is_global for address in found):
        raise SpecvizError(
            "{host} does not lead to a public address, so this page does not ask it.", "server", host=url.host
        )
    return found[0]


def _literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _looked_up(host: str, port: int) -> Sequence[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SpecvizError("The name {host} is not known: {reason}.", "server", host=host, reason=str(error)) from error
    return list(dict.fromkeys(str(place[4][0]) for place in found))
