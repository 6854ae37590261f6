"""headroom-ai: `compress(messages)` on the raw messages of the Messages API before each call."""

from __future__ import annotations

from typing import Any

from driving import as_chat, versions
from headroom import compress
from headroom.cache.compression_store import get_compression_store

COUNTER = "tiktoken or the model's own tokenizer, per message"
WAYS = {
    "default": "compress(messages): every default",
    "free": "compress(messages, optimize=True): the same; it has no trigger",
}
ORIGINALS = {"free": "memory"}
STATE = ("messages",)  # as the application keeps them: it has no store


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("headroom-ai")


class Peer:
    def __init__(
        self, way: str, folder: str, window: int = 200_000, form: str = "messages", **_: Any
    ) -> None:
        del way, folder
        self.form = form
        self.window = window
        self.messages: list[dict[str, Any]] = []

    def convert(self, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.form == "chat":
            return [made for message in new for made in as_chat(message)]
        return [
            {name: value for name, value in message.items() if name != "usage"} for message in new
        ]

    def append(self, native: list[dict[str, Any]]) -> None:
        self.messages += native

    async def shape(self) -> list[dict[str, Any]]:
        return compress(self.messages, model="claude-sonnet-5", model_limit=self.window).messages

    def wire(self, shaped: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return shaped

    def chat(self, shaped: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return shaped

    def kept(self) -> tuple[dict[str, str], list[str]]:
        """The originals that it holds in memory, by their hashes, and the caller's messages."""
        entries = get_compression_store()._backend.items()
        return {key: entry.original_content for key, entry in entries}, [
            str(message) for message in self.messages
        ]
