"""Which requests the gateway takes at all, and in what form it refuses the others."""

from __future__ import annotations

import hmac
from base64 import b64decode
from binascii import Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from .body import Refused

__all__ = [
    "MAX_BODY",
    "TOKEN",
    "Guard",
    "error_body",
    "is_loopback",
]

MAX_BODY = 32 * 1024 * 1024
"""Bytes of a request; the Messages API takes no more."""

TOKEN = "x-ctxpipe-token"  # noqa: S105  a name
"""The header in which a client shows its token."""

_LOCAL_NAMES = frozenset(
    {
        "localhost",
        "localhost.localdomain",
        "ip6-localhost",
    }
)


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks requests before anything is read of them.

    Without *tokens* only programs on this machine get in: the ``Host`` must be local, so that no
    name of another's domain that points here (DNS rebinding) does, and there must be no ``Origin``,
    so that no page in a browser does. With them each request shows one of them.
    """

    tokens: Sequence[str] = field(default=(), repr=False)

    def check(
        self,
        headers: Sequence[tuple[str, str]],
        *,
        is_page: bool = False,
    ) -> str:
        """The token that a request with *headers* shows, "" where none is needed.

        A browser that asks for the page *is_page* may show it as a password. Raises Refused.
        """
        _check_form(headers)
        values = {name.lower(): value for name, value in headers}
        if "origin" in values:
            raise Refused(403, "a page in a browser may not send requests to this gateway")
        if not self.tokens:
            host = _host_of(values.get("host", ""))
            if not is_loopback(host):
                raise Refused(403, "the Host of a request must be 127.0.0.1 or localhost")
            return ""
        shown = values.get(TOKEN, "")
        if is_page and not shown:
            shown = _password(values.get("authorization", ""))
        return self._find_token(shown)

    def _find_token(self, shown: str) -> str:
        found = ""
        shown_bytes = shown.encode()
        for token in self.tokens:  # all of them, so that the time says nothing
            if hmac.compare_digest(token.encode(), shown_bytes):
                found = token
        if not found:
            raise Refused(401, f"the header {TOKEN} must show a token of this gateway")
        return found


def _check_form(headers: Sequence[tuple[str, str]]) -> None:
    """Raise Refused for headers that another reader might understand in another way."""
    names = [name.lower() for name, _ in headers]
    values = {name.lower(): value for name, value in headers}
    if "transfer-encoding" in names and "content-length" in names:
        raise Refused(400, "a request has a Content-Length or a Transfer-Encoding, not both")
    for name in ("host", "content-length", "transfer-encoding"):
        count = names.count(name)
        if count > 1:
            raise Refused(400, f"a request has one {name} header, not {count}")
    length = values.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise Refused(400, "the Content-Length is no number")
    if int(length) > MAX_BODY:
        raise too_large()


def too_large() -> Refused:
    """The refusal of a body above MAX_BODY."""
    return Refused(413, f"the body is larger than {MAX_BODY} bytes")


def is_loopback(host: str) -> bool:
    """Whether *host*, a name or an address without port, is this machine's own."""
    if host.lower().rstrip(".") in _LOCAL_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(value: str) -> str:
    """The host in a ``Host`` header, without its port and brackets."""
    if value.startswith("["):
        address, _, _ = value[1:].partition("]")
        return address
    if ":" not in value:
        return value
    host, _, _ = value.rpartition(":")
    return host


def _password(authorization: str) -> str:
    """The password of Basic authentication, "" where there is none."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        credentials = b64decode(given, validate=True).decode()
    except (Error, UnicodeDecodeError):
        return ""
    _, _, password = credentials.partition(":")
    return password


_OPENAI = ("/chat/completions", "/responses")
_KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    502: "api_error",
    503: "overloaded_error",
}


def error_body(status: int, text: str, path: str) -> dict[str, Any]:
    """An error in the form of the API that *path* belongs to."""
    kind = _KINDS.get(status, "api_error")
    message = f"ctxpipe gateway: {text}"
    if path.endswith(_OPENAI):
        return {
            "error": {
                "message": message,
                "type": kind,
                "param": None,
                "code": None,
            },
        }
    return {
        "type": "error",
        "error": {
            "type": kind,
            "message": message,
        },
    }
