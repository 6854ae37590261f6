"""Functions that the drivers share.

They read messages of the Messages API, and the files in the folder of a peer.

Standard library only: it runs inside each peer's environment.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["as_chat", "blocks", "files_in", "read_back", "texts", "versions", "with_strings"]


def read_back(call_id: str) -> bool:
    """Return True if a result is a text that the agent has just read back.

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


def as_chat(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The message as an OpenAI loop holds it: those of chat completions."""
    said = blocks(message)
    text = "\n".join(block["text"] for block in said if block["type"] == "text")
    if message["role"] == "assistant":
        calls = [_chat_call(block) for block in said if block["type"] == "tool_use"]
        return [
            {
                "role": "assistant",
                "content": text or None,
                **({"tool_calls": calls} if calls else {}),
            }
        ]
    results = [
        {
            "role": "tool",
            "tool_call_id": block["tool_use_id"],
            "content": "\n".join(texts(block.get("content", ""), "text")),
        }
        for block in said
        if block["type"] == "tool_result"
    ]
    return [*results, *([{"role": message["role"], "content": text}] if text else [])]


def _chat_call(block: dict[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": json.dumps(block["input"])}
    return {"type": "function", "id": block["id"], "function": function}


def texts(value: Any, *keys: str) -> list[str]:
    """Every text in *value*, however deep it lies; of mappings only those at *keys*, if any."""
    if isinstance(value, str):
        return [value]
    items: Any = value if isinstance(value, list) else ()
    if isinstance(value, dict):
        items = [item for key, item in value.items() if not keys or key in keys]
    return [text for item in items for text in texts(item, *keys)]


def files_in(folder: Path) -> dict[str, str]:
    """The text of each file below *folder*, by its path from there.

    Of JSON, once more what its strings say.
    """
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): with_strings(
            path.read_text(encoding="utf-8", errors="replace")
        )
        for path in paths
    }


def with_strings(stored: str) -> str:
    """*stored*, and if it is JSON, once more what its strings say."""
    if not stored.startswith(("{", "[")):
        return stored
    try:
        return "\n".join([stored, *texts(json.loads(stored))])
    except ValueError:  # it only begins like JSON
        return stored
