"""What a client calls its conversation: in a header, else in the body of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..placeholders.names import UNNAMED, hashed_name
from ..wire.conversations import texts_at

MAX_NAME = 120
_MADE_HERE = re.compile(rf".*(/[0-9a-f]{{8}}|#[0-9a-f]{{16}})|{UNNAMED}-.*", re.DOTALL)

# By client; the second header distinguishes sub-agents that run under one session.
_HEADERS = (
    ("x-ctxpipe-session", ""),
    ("x-claude-code-session-id", "x-claude-code-agent-id"),
    ("session-id", "thread-id"),  # codex
    ("session_id", ""),
    ("x-session-id", ""),  # opencode
)
_IN_BODY = ("metadata.session_id", "metadata.user_id", "prompt_cache_key", "user")


def conversation_name(headers: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """The name of the conversation that a request belongs to, "" where it has none.

    *headers* have names in small letters, *values* are those of the body. A key to the API is no
    name: neither ``authorization`` nor ``x-api-key`` is looked at. No two names become one: what is
    too long, or looks like a name that is made here, ends in its hash.
    """
    name = _in_headers(headers)
    if not name:
        found = filter(None, map(_text, texts_at(values, *_IN_BODY)))
        name = _session_in(next(found, ""))
    if len(name) <= MAX_NAME and not _MADE_HERE.fullmatch(name):
        return name
    return hashed_name(name, MAX_NAME)


def _in_headers(headers: Mapping[str, str]) -> str:
    for first, second in _HEADERS:
        if name := headers.get(first):
            agent = headers.get(second)
            return f"{name}.{agent}" if agent and agent != name else name
    return ""


def _session_in(name: str) -> str:
    """The session in a *name* that is JSON, as Claude Code's user id; else the whole of it."""
    if not name.startswith("{"):
        return name
    with suppress(ValueError, RecursionError):
        return _text(json.loads(name).get("session_id")) or name
    return name


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
