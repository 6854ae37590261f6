"""The tokens that clients of a gateway send, and the tenants that they belong to."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from ..errors import SettingsError
from ..settings import excerpt
from .journals import is_owner

MIN_CHARS = 16
"""Minimum length of a token."""
FORM = "TOKEN name=NAME expires=YYYY-MM-DD operator=yes, of which only the token is required"
_WORD = re.compile(r"\s+(name|expires|operator)=(\S*)\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a gateway, and the tenant that it belongs to.

    *name* is the tenant's name, "" for a token without one, which is a tenant of its own. Tokens
    with the same name belong to the same tenant, so a token can be replaced by a new one. From the
    time *expires* on the token is refused. *is_operator* is True if it may read the totals of all
    tenants.
    """

    secret: str = field(repr=False)
    name: str = ""
    expires: datetime | None = None
    is_operator: bool = False

    @property
    def owner(self) -> str:
        """Digest of the name, or of the token if it has no name; "" for the empty token.

        It is the name of the tenant's folder.
        """
        if not self.secret:
            return ""
        # No token in a header contains a NUL, so no name has the digest of a token.
        text = f"name\0{self.name}" if self.name else self.secret
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def is_expired(self) -> bool:
        """True from the time `expires` on."""
        return self.expires is not None and self.expires <= datetime.now(UTC)

    @property
    def label(self) -> str:
        """The tenant in logs and metrics: its name, otherwise its digest."""
        return self.name or self.owner


NO_TOKEN = Token("", is_operator=True)
"""The token of all clients of a gateway without tokens, which serves this machine only."""


def parse_token(line: str) -> Token:
    """Return the token in *line*, which has the FORM of a line in a token file.

    Raises SettingsError if the token is too short, or a word after it is invalid.
    """
    secret = line.strip()
    words: dict[str, str] = {}
    while match := _WORD.search(secret):
        words.setdefault(match[1], match[2])
        secret = secret[: match.start()]
    if len(secret) < MIN_CHARS:
        raise SettingsError(f"a token has {MIN_CHARS} characters or more; a line is {FORM}")
    name = words.get("name", "")
    # A name with the form of a digest could be that of another tenant in logs and metrics.
    if "name" in words and (not _NAME.fullmatch(name) or is_owner(name)):
        raise SettingsError(
            f"the name of a token is {excerpt(name)}; give up to 64 letters, digits, dots and "
            "hyphens that are no digest"
        )
    if words.get("operator", "no") not in {"yes", "no"}:
        raise SettingsError(f"operator is {excerpt(words['operator'])}; give operator=yes or no")
    expires = None
    if "expires" in words:
        expires = _end_of(words["expires"])
    return Token(secret, name, expires, words.get("operator") == "yes")


def _end_of(text: str) -> datetime:
    """Return the end of the day *text* in UTC, or the time *text*. Raises SettingsError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(
            f"expires is {excerpt(text)}; give a day such as 2027-01-31, or a time such as "
            "2027-01-31T12:00Z"
        ) from error
    if "T" not in text.upper():
        return datetime.combine(moment.date() + timedelta(days=1), time(), UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_tokens(lines: Iterable[str]) -> list[Token]:
    """Return the tokens in *lines*. Raises SettingsError if one is invalid or occurs twice."""
    tokens = [parse_token(line) for line in lines]
    if len({token.secret for token in tokens}) < len(tokens):
        raise SettingsError("a token occurs twice; give each tenant a token of its own")
    return tokens


def read_tokens(path: Path) -> list[str]:
    """Return the lines of the token file at *path*, without empty lines and comments.

    Raises SettingsError if the file has no token or an invalid one, if it cannot be read, or if
    other users than its owner may read it. Its group may read it too if root owns it and does not
    run the gateway.
    """
    try:
        status = path.stat()
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SettingsError(f"the token file {path} cannot be read: {reason}") from error
    forbidden = 0o077
    # PostgreSQL has the same rule for its key file. Root owns the file of a service that must not
    # change its own tokens, and every secret that Kubernetes mounts; the service reads it by group.
    if status.st_uid == 0 and os.geteuid() != 0:
        forbidden = 0o037
    if status.st_mode & forbidden:
        raise SettingsError(f"the token file may be read by others: chmod 600 {path}")
    token_lines: Sequence[str] = [
        line for line in lines if line.strip() and not line.startswith("# ")
    ]
    if not token_lines:
        raise SettingsError(f"the token file {path} has no token; a line is {FORM}")
    parse_tokens(token_lines)
    return list(token_lines)
