"""What the drivers share.

How messages of the Messages API are read, and what lies in a peer's folder.

Standard library only: it runs inside each peer's environment.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["blocks", "files_in", "read_back", "texts", "versions"]


def read_back(call_id: str) -> bool:
    """Whether a result is what the agent has just read back.

    Each peer spares those of its own reading tool.
    """
    return call_id.startswith("refetch-")


def versions(*packages: str) -> dict[str, str]:
    """The installed version of each package."""
    return {package: version(package) for package in packages}


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The content as blocks: bare text is one."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def texts(value: Any) -> list[str]:
    """Every text in *value*, however deep it lies."""
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in texts(item)]


def files_in(folder: Path) -> dict[str, str]:
    """The text of each file below *folder*, by its path from there.

    Of JSON, once more what its strings say.
    """
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): _text(path.read_text(encoding="utf-8", errors="replace"))
        for path in paths
    }


def _text(stored: str) -> str:
    if not stored.startswith(("{", "[")):
        return stored
    try:
        return "\n".join([stored, *texts(json.loads(stored))])
    except ValueError:  # it only begins like JSON
        return stored
