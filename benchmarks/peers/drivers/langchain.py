"""LangChain: SummarizationMiddleware and ContextEditingMiddleware.

They run before a model call, as `create_agent` runs them.
"""

from __future__ import annotations

from typing import Any

from driving import versions
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    SummarizationMiddleware,
)
from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_messages import FakeChat, chatted, converted, head, held, wired

COUNTER = "characters / 3.3, scaled by the last bill"
WAYS = {
    "default": (
        "clear_tool_uses at 100,000 tokens, keep 3; summarize at 0.85 of the window, keep 20 "
        "messages"
    ),
    "compact": "SummarizationMiddleware alone, given trigger and tokens to keep",
    "free": "ContextEditingMiddleware alone, given trigger, keep 5",
    "both": "clear at the trigger, keep 5; summarize at the given trigger, keep 20 messages",
}
ORIGINALS = {"compact": "nowhere", "free": "memory"}
STATE = ("messages",)  # as LangGraph's checkpointer keeps them


def VERSIONS() -> dict[str, str]:  # noqa: N802  a constant, but for the look-up
    return versions("langchain", "langchain-core", "langchain-anthropic")


class Peer:
    def __init__(
        self,
        way: str,
        folder: str,
        window: int = 200_000,
        trigger: int = 100_000,
        keep_tokens: int = 20_000,
        clear: int = 0,
        system: Any = None,
        tools: Any = None,
        **_: Any,
    ) -> None:
        del folder
        self.head = head(system, tools)
        self.model = FakeChat(profile={"max_input_tokens": window})
        self.messages: list[BaseMessage] = []
        self.summarize: Any = None
        self.edit: Any = None
        if way == "default":
            self.edit = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=window // 2)])
            self.summarize = SummarizationMiddleware(self.model, trigger=("fraction", 0.85))
        elif way == "compact":
            self.summarize = SummarizationMiddleware(
                self.model, trigger=("tokens", trigger), keep=("tokens", keep_tokens)
            )
        elif way == "free":
            self.edit = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=trigger, keep=5)])
        else:
            self.edit = ContextEditingMiddleware(
                edits=[ClearToolUsesEdit(trigger=clear or trigger // 2, keep=5)]
            )
            self.summarize = SummarizationMiddleware(self.model, trigger=("tokens", trigger))

    def convert(self, new: list[dict[str, Any]]) -> list[BaseMessage]:
        return converted(new)

    def append(self, native: list[BaseMessage]) -> None:
        self.messages += native

    async def shape(self) -> list[BaseMessage]:
        if self.summarize is not None:
            update = await self.summarize.abefore_model({"messages": self.messages}, None)
            if update is not None:
                self.messages = [m for m in update["messages"] if not isinstance(m, RemoveMessage)]
        if self.edit is None:
            return self.messages
        sent: list[BaseMessage] = []

        async def handler(request: Any) -> Any:
            sent.extend(request.messages)

        request = ModelRequest(
            model=self.model,
            messages=self.messages,
            state={"messages": self.messages},
            runtime=None,
            **self.head,
        )
        await self.edit.awrap_model_call(request, handler)
        return sent

    def wire(self, shaped: list[BaseMessage]) -> list[dict[str, Any]]:
        return wired(shaped)

    def chat(self, shaped: list[BaseMessage]) -> list[dict[str, Any]]:
        return chatted(shaped)

    def kept(self) -> tuple[dict[str, str], list[str]]:
        return {}, held(self.messages)
