"""The version in the paths of Anthropic's API, which some clients expect in the base URL."""

from __future__ import annotations

from collections.abc import Container, MutableMapping
from typing import Any

from .settings import ANTHROPIC

VERSION = "/v1"
_RESOURCES = frozenset({"messages", "models", "files", "complete", "skills"})
"""First path segments after the version; Anthropic's other paths (/api/…) have no version."""


def add_version(scope: MutableMapping[str, Any], prefixes: Container[str]) -> None:
    """Rewrite ``/anthropic/messages`` in the ASGI *scope* to ``/anthropic/v1/messages``.

    Anthropic's own SDK expects a base URL without the version, the AI SDK one with it, and both
    read it from ANTHROPIC_BASE_URL. Therefore both paths mean the same below the prefix of
    Anthropic's API, if it is one of *prefixes*.
    """
    if ANTHROPIC not in prefixes:
        return
    raw: bytes = scope["raw_path"]
    prefix = f"{ANTHROPIC}/".encode()
    if not raw.startswith(prefix):
        return
    resource = raw[len(prefix) :].partition(b"/")[0]
    if resource.decode("latin-1") in _RESOURCES:
        version = VERSION.encode()
        scope["raw_path"] = ANTHROPIC.encode() + version + raw[len(ANTHROPIC) :]
        scope["path"] = ANTHROPIC + VERSION + scope["path"][len(ANTHROPIC) :]
