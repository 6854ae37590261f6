"""langmem: `asummarize_messages`, called before each model call.

It is given the running summary, as its example does.
"""

from __future__ import annotations

import uuid
from typing import Any

from driving import versions
from langchain_core.messages import BaseMessage
from langchain_messages import FakeChat, chatted, converted, held, wired
from langmem.short_term import asummarize_messages

COUNTER = "characters / 4"
WAYS = {
    "default": "max_tokens = 0.85 of the window (it has no default), summary of 256 tokens",
    "compact": "max_tokens = the given tokens to keep, begun at the trigger",
}
ORIGINALS = {"compact": "memory"}
STATE = ("messages", "summary")  # as LangGraph's checkpointer keeps them


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("langmem", "langchain-core", "langchain-anthropic")


class Peer:
    def __init__(
        self,
        way: str,
        folder: str,
        window: int = 200_000,
        trigger: int = 100_000,
        keep_tokens: int = 20_000,
        **_: Any,
    ) -> None:
        del folder
        self.model = FakeChat(profile={"max_input_tokens": window})
        self.limits: dict[str, int] = {"max_tokens": int(0.85 * window)}
        if way == "compact":
            self.limits = {
                "max_tokens": max(keep_tokens, 512),
                "max_tokens_before_summary": trigger,
            }
        self.messages: list[BaseMessage] = []
        self.summary: Any = None

    def convert(self, new: list[dict[str, Any]]) -> list[BaseMessage]:
        made = converted(new)
        for message in made:
            message.id = str(uuid.uuid4())
        return made

    def append(self, native: list[BaseMessage]) -> None:
        self.messages += native

    async def shape(self) -> list[BaseMessage]:
        result = await asummarize_messages(
            self.messages, running_summary=self.summary, model=self.model, **self.limits
        )
        self.summary = result.running_summary
        return result.messages

    def wire(self, shaped: list[BaseMessage]) -> list[dict[str, Any]]:
        return wired(shaped)

    def chat(self, shaped: list[BaseMessage]) -> list[dict[str, Any]]:
        return chatted(shaped)

    def kept(self) -> tuple[dict[str, str], list[str]]:
        return {}, held(self.messages)
