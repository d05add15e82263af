"""Requests to a server and the streams that it answers with: bounded in size and time, never led elsewhere, and every
failure a sentence that a person can act on."""

from __future__ import annotations

import contextlib
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from specviz.records.errors import SpecvizError, first_line, shortened
from specviz.servers.address import Address

#: The environment variable with servers' key: on a command line others could read it. It is in no file and no message.
KEY = "SPECVIZ_SERVER_KEY"

#: Seconds to connect; seconds of silence after which a stream is called stalled.
CONNECT, SILENCE = 5.0, 60.0

#: The longest answer that is read, in bytes, and the longest stream: SGLang repeats the whole answer with each token.
MOST_BYTES, MOST_STREAMED = 20_000_000, 400_000_000

#: How servers say that they have no model of that name.
_NO_MODEL = re.compile(
    r"\bmodel\b.*\b(no|not|unknown|invalid|exist\w*)\b|\b(no|not|unknown|invalid)\b.*\bmodel\b", re.I
)

#: Connections at a time: the most requests at once that are ever made.
MOST_AT_ONCE = 64


class Connection:
    """An open way to one server. Safe to use from several threads.

    key: sent as a bearer token; it is in no error and no file.
    """

    def __init__(self, address: Address, key: str | None = None, silence: float = SILENCE):
        self.address, self._key = address, (key or "").strip()
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        if address.pinned is not None:
            headers["Host"] = address.url.netloc.decode("ascii")
        if not self._key.isascii() or not self._key.isprintable():
            raise SpecvizError("A key consists of letters, digits and signs.", "server_key")
        try:
            self._client = httpx.Client(
                headers=headers,
                timeout=httpx.Timeout(silence, connect=CONNECT),
                limits=httpx.Limits(max_connections=MOST_AT_ONCE, max_keepalive_connections=MOST_AT_ONCE),
                follow_redirects=False,
                # Proxies of this machine's environment would look the name up themselves.
                trust_env=address.pinned is None,
            )
        except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
            raise self.complaint(
                "This machine's settings for proxies and certificates cannot be used: {reason}. Check the environment "
                "variables SSL_CERT_FILE, ALL_PROXY, HTTP_PROXY, HTTPS_PROXY and NO_PROXY.",
                reason=first_line(error),
            ) from error

    def close(self) -> None:
        self._client.close()

    def text(self, path: str, query: Mapping[str, str] | None = None) -> str | None:
        """What lies at a path; None where the server, or a proxy before it, does not give it. Raises for a server that
        is not ready, or takes no more requests."""
        with self._sent("GET", path, query=query) as response:
            if response.status_code not in (429, 503) and not response.is_success:
                return None
            self._check(response, path)
            return _whole(response)

    def fact(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The values at a path where engines say something of themselves; None where this one does not: a proxy may
        give another status, or a page, for what it does not pass on."""
        try:
            return json.loads(self.text(path, query) or "null")
        except (ValueError, RecursionError):
            return None

    def json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The values at a path, or in answer to a body; None where the server has nothing there."""
        with self._sent("GET" if body is None else "POST", path, body) as response:
            if response.status_code in (404, 405, 501):
                return None
            self._check(response, path)
            text = _whole(response)
        values = self._values(text, path)
        if body is not None and isinstance(values, dict) and values.get("error") is not None:
            raise self.complaint("{server} broke off: {said}.", said=_message(text, self._key))
        return values

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The values that a server streams in answer to a body, one by one as they come: as server-sent events, or a
        line each. Closing it ends the request."""
        with self._sent("POST", path, body) as response:
            self._check(response, path)
            for line in _lines(response):
                data = line.removeprefix("data:").strip()
                if line.startswith((":", "event:", "id:", "retry:")) or not data:
                    continue
                if data == "[DONE]":
                    return
                event = self._values(data, path)
                if not isinstance(event, dict):
                    raise self._strange(path, data)
                if event.get("error") is not None:
                    raise self.complaint("{server} broke off: {said}.", said=_message(data, self._key))
                yield event

    def complaint(self, template: str, field: str = "server", **values: object) -> SpecvizError:
        """A sentence about this server."""
        return SpecvizError(template, field, server=self.address.shown, **values)

    @contextlib.contextmanager
    def _sent(
        self, method: str, path: str, body: dict[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        extensions = {"sni_hostname": self.address.url.host} if self.address.pinned else {}

        def sent() -> contextlib.AbstractContextManager[httpx.Response]:
            return self._client.stream(method, self.address.at(path), json=body, params=query, extensions=extensions)

        try:
            with contextlib.ExitStack() as stack:
                try:
                    response = stack.enter_context(sent())
                except httpx.RemoteProtocolError:
                    # The server ended a connection that it had kept, just when it was to be used again.
                    response = stack.enter_context(sent())
                yield response
        except httpx.ConnectTimeout as error:
            raise self.complaint(
                "{server} does not answer within {seconds} seconds. Is the address right, and can it be reached?",
                seconds=CONNECT,
            ) from error
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except httpx.TimeoutException as error:
            raise self.complaint(
                "{server} has said nothing for {seconds} seconds. Is it busy with other requests?",
                seconds=self._client.timeout.read,
            ) from error
        except httpx.HTTPError as error:
            raise self.complaint(
                "The connection to {server} broke: {reason}. Was it restarted?", reason=first_line(error)
            ) from error

    def _unreachable(self, error: httpx.ConnectError) -> SpecvizError:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, ssl.SSLCertVerificationError):
            return self.complaint(
                "The certificate of {server} is not valid: {reason}. If it is your own, name its authority's file in "
                "the environment variable SSL_CERT_FILE.",
                reason=cause.verify_message,
            )
        if cause is not None:
            return self.complaint("{server} does not speak https; its address may begin with http://.")
        return self.complaint(
            "Nothing answers at {server}: {reason}. Is the server running, and is this its port?",
            reason=first_line(error),
        )

    def _check(self, response: httpx.Response, path: str) -> None:
        """Raises for an answer that is no success."""
        status = response.status_code
        if response.is_success:
            return
        if response.is_redirect:
            raise self.complaint(
                "{server} sends requests on to {place}, where they are not followed. If that is your server, enter "
                "that address.",
                place=shortened(response.headers.get("location", "")),
            )
        if status in (401, 403):
            refused = self.complaint("{server} refuses this key.", "server_key")
            raise refused if self._key else self.complaint("{server} wants a key.", "server_key")
        said = _message(_whole(response), self._key)
        if status in (400, 404) and _NO_MODEL.search(said):
            raise self.complaint("{server} refused the request: {said}.", "server_model", said=said)
        if status == 429:
            raise self.complaint(
                "{server} takes no more requests now (status 429): {said}. Wait a little, or ask fewer at once.",
                said=said,
            )
        if status == 503:
            raise self.complaint("{server} is not ready yet (status 503): {said}.", said=said)
        raise self.complaint("{server} refused {path} (status {status}): {said}.", path=path, status=status, said=said)

    def _values(self, text: str, path: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._strange(path, text) from error

    def _strange(self, path: str, text: str) -> SpecvizError:
        if text.lstrip()[:1] == "<":
            return self.complaint(
                "{server} answers {path} with a web page, not as an inference server does. Is this its address?",
                path=path,
            )
        return self.complaint(
            "{server} answers {path} with something that is not JSON, or half of it: {said}.",
            path=path,
            said=_message(text, self._key),
        )


def _whole(response: httpx.Response) -> str:
    """The body as text, up to `MOST_BYTES`."""
    parts, size = [], 0
    for part in response.iter_bytes():
        size += len(part)
        if size > MOST_BYTES:
            raise _too_long(MOST_BYTES)
        parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


def _lines(response: httpx.Response) -> Iterator[str]:
    """Its lines as they come; what stands behind the last line end, too."""
    waiting, size = b"", 0
    for part in response.iter_bytes():
        size += len(part)
        *lines, waiting = (waiting + part).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").strip()
        for length, most in ((len(waiting), MOST_BYTES), (size, MOST_STREAMED)):
            if length > most:
                raise _too_long(most)
    if waiting.strip():
        yield waiting.decode("utf-8", "replace").strip()


def _too_long(most: int) -> SpecvizError:
    return SpecvizError("The server's answer is longer than {most} bytes; it is not read.", "server", most=most)


def _message(text: str, key: str) -> str:
    """What a server says of an error, short, and without the key should it repeat that."""
    try:
        values = json.loads(text)
    except ValueError:
        values = text
    for name in ("error", "message", "detail"):
        values = values.get(name, values) if isinstance(values, dict) else values
    words = " ".join(str(values).split()) or "it gives no reason"
    return shortened(words.replace(key, "…") if key else words).rstrip(".")
