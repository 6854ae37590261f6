"""File names for ids that may be hostile. Source: A-14, R9."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath

__all__ = ["content_hash", "safe_name", "suffixed"]

_VERBATIM = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.IGNORECASE)  # device names on Windows
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(name: str) -> str:
    """*name* itself where it is a harmless file name of at most 120 bytes, else a slug and 8 hex digits of its hash.

    Different names stay different; none holds a separator, begins with a dot or names a device.
    """
    if _VERBATIM.fullmatch(name) and not _RESERVED.match(name):
        return name
    slug = _UNSAFE.sub("-", name)[:80].strip("-.")
    if _RESERVED.match(slug):
        slug = f"id-{slug}"
    return f"{slug or 'id'}-{content_hash(name)}"


def suffixed(key: str, suffix: str) -> str:
    """*key* with *suffix* before its extension: ``a/b.md``, ``1`` gives ``a/b-1.md``."""
    path = PurePosixPath(key)
    return str(path.with_name(f"{path.stem}-{suffix}{path.suffix}"))


def content_hash(text: str) -> str:
    """Eight hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
