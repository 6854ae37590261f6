"""Checks that a request must pass, the time limit for its body, and the form of refusals."""

from __future__ import annotations

import asyncio
import hmac
import re
from base64 import b64decode
from binascii import Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import CtxpipeError
from ..wire.formats import GEMINI_METHOD
from .tokens import NO_TOKEN, Token

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 256 * 1024 * 1024
"""Maximum bytes of a request that is shaped.

More than the APIs accept, because shaping can move images and documents to files.
"""

MAX_HEAD = 64 * 1024
"""Maximum bytes of a request's target and headers."""

TOKEN = "x-ctxpipe-token"  # noqa: S105  a name
"""The header in which a client sends its token."""

_SITE = "sec-fetch-site"
"""The header in which a browser, and nothing else, names the origin of a request."""

_NOT_IN_PATHS = re.compile(r"[\\#]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATORS = re.compile(r"[/\\;]")
_DOTS = frozenset({".", ".."})

_HOST = re.compile(
    r"(?P<name>[a-z0-9.-]+)(:[0-9]*)?|\[(?P<address>[0-9a-f:.]+)\](:[0-9]*)?", re.IGNORECASE
)

_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class Refused(CtxpipeError, ValueError):
    """A request that the gateway answers itself with *status* and does not send to the upstream."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks the head of each request before its body is read.

    Without *tokens* only programs on this machine are served: the ``Host`` must be local, which
    excludes foreign domains that resolve to this address (DNS rebinding), and no header may show
    that a page in a browser sent the request. With *tokens* each request must send one of them that
    has not expired.
    """

    tokens: Sequence[Token] = ()

    def check(self, request: Request, *, is_page: bool = False, is_internal: bool = False) -> Token:
        """Return the token that *request* sends, NO_TOKEN if the gateway has no tokens.

        A browser may open a request with *is_page*. A request with *is_internal* is answered by the
        gateway itself, so its Authorization header may contain the token, as a password or as a
        bearer token.

        Raises Refused if the request is not acceptable.
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
            return NO_TOKEN
        client_token = headers.get(TOKEN, "")
        if is_internal and not client_token:
            client_token = _authorization(headers.get("authorization", ""))
        matching_token: Token | None = None
        client_bytes = client_token.encode()
        for token in self.tokens:  # all of them, so that the duration reveals nothing
            if hmac.compare_digest(token.secret.encode(), client_bytes):
                matching_token = token
        if matching_token is None:
            raise Refused(401, f"the header {TOKEN} must show a token of this gateway")
        if matching_token.is_expired:
            raise Refused(
                401, f"the token of {matching_token.label} has expired: ask for a new one"
            )
        return matching_token


def _check_path(path: str) -> None:
    """Raise Refused if other software might resolve *path* to a different resource."""
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
    """Return True if *host*, a name or an address without port, is local to this machine."""
    if host.lower().rstrip(".") in _LOCAL_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _authorization(value: str) -> str:
    """Return the password or bearer token in the Authorization header *value*, "" without one."""
    scheme, _, credentials = value.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        user_and_password = b64decode(credentials, validate=True).decode()
    except (Error, UnicodeDecodeError):
        return ""
    _, _, password = user_and_password.partition(":")
    return password


_STATUSES: Mapping[int, str] = {
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    503: "UNAVAILABLE",
}
_OPENAI = ("/chat/completions", "/responses")
_KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    426: "invalid_request_error",
    503: "overloaded_error",
}


def error_body(status: int, text: str, path: str) -> dict[str, Any]:
    """Return the JSON object of an error, in the form of the API that *path* belongs to."""
    kind = _KINDS.get(status, "api_error")
    message = f"ctxpipe gateway: {text}"
    if path.endswith(_OPENAI):
        code = None
        if status == 402:
            kind = code = "insufficient_quota"
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}
    if GEMINI_METHOD.search(path):
        name = _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
        return {"error": {"code": status, "message": message, "status": name}}
    return {"type": "error", "error": {"type": kind, "message": message}}


class BodyTimeLimit:
    """ASGI middleware that refuses a request whose body stops arriving for *seconds*.

    The limit is for each part of a body, so that a large body on a slow connection may take any
    time. Without a limit, a client could keep connections open with bodies that never end.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request in *scope*; its `receive` raises Refused once the time is over."""
        if scope["type"] != "http":  # the start and the end of the gateway
            await self._app(scope, receive, send)
            return
        is_complete = False

        async def receive_in_time() -> Message:
            """Return the next part of the body, or report later that the client has left."""
            nonlocal is_complete
            if is_complete:
                return await receive()
            try:
                # Not anyio's, which takes several times as long; a large body has many parts.
                async with asyncio.timeout(self._seconds):
                    message = await receive()
            except TimeoutError as error:
                raise Refused(
                    408, f"nothing of the body has arrived for {self._seconds:g} seconds"
                ) from error
            is_complete = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time, send)
