"""LlamaIndex: Memory and ChatSummaryMemoryBuffer.

The first is a queue that flushes into memory blocks, the second a summary by the model.
"""

from __future__ import annotations

import base64
import uuid
from typing import Any

import fake_model
from driving import blocks, versions
from llama_index.core.base.llms.types import (
    ChatMessage,
    CompletionResponse,
    ImageBlock,
    LLMMetadata,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms import CustomLLM
from llama_index.core.memory import ChatSummaryMemoryBuffer, Memory
from llama_index.llms.anthropic.utils import messages_to_anthropic_messages
from llama_index.llms.openai.utils import to_openai_message_dicts

COUNTER = "tiktoken, the whole queue on each put"
WAYS = {
    "default": (
        "Memory.from_defaults(): 30,000 tokens, 0.7 of them for the queue, flushed in 3,000; no "
        "memory block"
    ),
    "quiet": "Memory with the given window as its limit",
    "compact": "ChatSummaryMemoryBuffer, given tokens to keep word for word",
}
ORIGINALS = {"compact": "nowhere"}
STATE = ("saved",)  # its chat store


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("llama-index-core", "llama-index-llms-anthropic")


class FakeLLM(CustomLLM):
    """Answers with the fake summary."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=200_000, model_name="gpt-4o")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=fake_model.summary(prompt))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        yield self.complete(prompt)


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
        self.everything: list[ChatMessage] = []
        self.new: list[ChatMessage] = []
        if way == "compact":
            self.memory: Any = ChatSummaryMemoryBuffer.from_defaults(
                llm=FakeLLM(), token_limit=keep_tokens
            )
        else:
            name = uuid.uuid4().hex
            limit = {"token_limit": window} if way == "quiet" else {}
            self.memory = Memory.from_defaults(session_id=name, **limit)

    def convert(self, new: list[dict[str, Any]]) -> list[ChatMessage]:
        return [made for message in new for made in _converted(message)]

    async def arrive(self, native: list[ChatMessage]) -> None:
        if isinstance(self.memory, Memory):
            await self.memory.aput_messages(native)
        else:
            for message in native:
                self.memory.put(message)

    def append(self, native: list[ChatMessage]) -> None:
        """Done when they arrived."""

    async def shape(self) -> list[ChatMessage]:
        return await self.memory.aget() if isinstance(self.memory, Memory) else self.memory.get()

    def wire(self, shaped: list[ChatMessage]) -> list[dict[str, Any]]:
        messages, system = messages_to_anthropic_messages(shaped)
        return [*([{"role": "system", "content": system}] if system else []), *messages]

    def chat(self, shaped: list[ChatMessage]) -> list[dict[str, Any]]:
        return to_openai_message_dicts(shaped, model="gpt-4.1")

    @property
    def saved(self) -> Any:
        return self.memory.chat_store

    @saved.setter
    def saved(self, store: Any) -> None:
        self.memory.chat_store = store

    async def kept(self) -> tuple[dict[str, str], list[str]]:
        held = (
            await self.memory.aget_all()
            if isinstance(self.memory, Memory)
            else self.memory.get_all()
        )
        return {}, [str(message.model_dump()) for message in held]


def _converted(message: dict[str, Any]) -> list[ChatMessage]:
    results = [
        ChatMessage(
            role="tool",
            blocks=_inner(block.get("content", "")),
            additional_kwargs={"tool_call_id": block["tool_use_id"]},
        )
        for block in blocks(message)
        if block["type"] == "tool_result"
    ]
    rest = [
        _block(block)
        for block in blocks(message)
        if block["type"] in ("text", "thinking", "tool_use", "image")
    ]
    return [*results, *([ChatMessage(role=message["role"], blocks=rest)] if rest else [])]


def _inner(content: Any) -> list[Any]:
    return (
        [TextBlock(text=content)]
        if isinstance(content, str)
        else [_block(block) for block in content]
    )


def _block(block: dict[str, Any]) -> Any:
    match block["type"]:
        case "thinking":
            told = {"signature": block["signature"]}
            return ThinkingBlock(content=block["thinking"], additional_information=told)
        case "tool_use":
            return ToolCallBlock(
                tool_call_id=block["id"], tool_name=block["name"], tool_kwargs=block["input"]
            )
        case "image":
            source = block["source"]
            return ImageBlock(
                image=base64.b64decode(source["data"]), image_mimetype=source["media_type"]
            )
    return TextBlock(text=block["text"])
