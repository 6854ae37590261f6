"""Which requests the gateway takes at all, and in what form it refuses the others."""

from __future__ import annotations

import hmac
import re
from base64 import b64decode
from binascii import Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import CtxpipeError
from ..wire.formats import GEMINI_METHOD

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_BODY = 256 * 1024 * 1024
"""Bytes of a request that is shaped: more than APIs take, since images and documents may leave."""

MAX_HEAD = 64 * 1024
"""Bytes of a request's target and headers."""

TOKEN = "x-ctxpipe-token"  # noqa: S105  a name
"""The header in which a client shows its token."""

_SITE = "sec-fetch-site"
"""In what relation the page that asks is to what it asks: only browsers say it."""

_NOT_IN_PATHS = re.compile(r"[\\#]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATORS = re.compile(r"[/\\;]")
_DOTS = frozenset({".", ".."})

_HOST = re.compile(
    r"(?P<name>[a-z0-9.-]+)(:[0-9]*)?|\[(?P<address>[0-9a-f:.]+)\](:[0-9]*)?", re.IGNORECASE
)

_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class Refused(CtxpipeError, ValueError):
    """A request that is answered by the gateway with *status*, and never sent on."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks requests before anything is read of them.

    Without *tokens* only programs on this machine get in: the ``Host`` must be local, so that no
    name of another's domain that points here (DNS rebinding) does, and nothing may say that a page
    in a browser asks. With them each request shows one of them.
    """

    tokens: Sequence[str] = field(default=(), repr=False)

    def check(self, request: Request, *, is_page: bool = False, is_ours: bool = False) -> str:
        """The token that *request* shows, "" where none is needed.

        A browser may ask for what *is_page*. What *is_ours* goes to no API, so that the token may
        be in its Authorization, as a password or a bearer. Raises Refused.
        """
        target = request.scope["raw_path"] + request.scope["query_string"]
        size = len(target) + sum(len(name) + len(value) for name, value in request.headers.raw)
        if size > MAX_HEAD:
            raise Refused(400, f"the head of a request takes more than {MAX_HEAD} bytes")
        _check_path(request.scope["raw_path"].decode("ascii"))
        headers = request.headers
        if "transfer-encoding" in headers and "content-length" in headers:
            raise Refused(400, "a request has a Content-Length or a Transfer-Encoding, not both")
        if "origin" in headers or (not is_page and headers.get(_SITE, "none") != "none"):
            raise Refused(403, "a page in a browser may not send requests to this gateway")
        if not self.tokens:
            host = _HOST.fullmatch(headers.get("host", ""))
            if host is None or not is_loopback(host["name"] or host["address"]):
                raise Refused(403, "the Host of a request must be 127.0.0.1 or localhost")
            return ""
        shown = headers.get(TOKEN, "")
        if is_ours and not shown:
            shown = _authorization(headers.get("authorization", ""))
        found = ""
        shown_bytes = shown.encode()
        for token in self.tokens:  # all of them, so that the time says nothing
            if hmac.compare_digest(token.encode(), shown_bytes):
                found = token
        if not found:
            raise Refused(401, f"the header {TOKEN} must show a token of this gateway")
        return found


def _check_path(path: str) -> None:
    """Raise Refused for a *path* that might lead another reader somewhere else."""
    try:
        text = unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise Refused(400, "the path is not UTF-8") from error
    if not path.startswith("/") or path.startswith("//"):
        raise Refused(400, "the target of a request is a path below this gateway")
    if _NOT_IN_PATHS.search(path) or _CONTROLS.search(text):
        raise Refused(400, "the path has a character that no path has")
    if not _DOTS.isdisjoint(_SEPARATORS.split(text)):
        raise Refused(400, "the path leads out of its folder")


def check_size(size: int) -> None:
    """Raise Refused for a body of more than MAX_BODY bytes."""
    if size > MAX_BODY:
        raise Refused(413, f"the body is larger than {MAX_BODY} bytes")


def is_loopback(host: str) -> bool:
    """Whether *host*, a name or an address without port, is this machine's own."""
    if host.lower().rstrip(".") in _LOCAL_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _authorization(value: str) -> str:
    """The password or bearer token in *value*, "" where there is none."""
    scheme, _, given = value.partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        credentials = b64decode(given, validate=True).decode()
    except (Error, UnicodeDecodeError):
        return ""
    _, _, password = credentials.partition(":")
    return password


_STATUSES: Mapping[int, str] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    503: "UNAVAILABLE",
}
_OPENAI = ("/chat/completions", "/responses")
_KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    426: "invalid_request_error",
    503: "overloaded_error",
}


def error_body(status: int, text: str, path: str) -> dict[str, Any]:
    """An error in the form of the API that *path* belongs to."""
    kind = _KINDS.get(status, "api_error")
    message = f"ctxpipe gateway: {text}"
    if path.endswith(_OPENAI):
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}
    if GEMINI_METHOD.search(path):
        code = _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
        return {"error": {"code": status, "message": message, "status": code}}
    return {"type": "error", "error": {"type": kind, "message": message}}
