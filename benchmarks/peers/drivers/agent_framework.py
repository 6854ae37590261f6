"""Microsoft Agent Framework: a compaction strategy, as its chat clients run it.

It runs through `apply_compaction`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fake_model
from agent_framework import (
    ChatResponse,
    Content,
    ContextWindowCompactionStrategy,
    Message,
    SummarizationStrategy,
    ToolResultCompactionStrategy,
    apply_compaction,
)
from agent_framework._compaction import CharacterEstimatorTokenizer, TokenBudgetComposedStrategy
from agent_framework_anthropic._chat_client import RawAnthropicClient
from driving import versions

COUNTER = "characters / 4, kept per message"
WAYS = {
    "default": (
        "ContextWindowCompactionStrategy(window, 16,384 output): collapse results at 0.5, drop "
        "groups at 0.8"
    ),
    "compact": (
        "above the trigger SummarizationStrategy with its defaults (target 4 messages, 8,000 "
        "tokens of prompt)"
    ),
    "free": "ToolResultCompactionStrategy, keep 5 groups, above the trigger",
}
ORIGINALS = {"compact": "memory", "free": "memory"}
STATE = ("messages",)  # as the application keeps them


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("agent-framework-core", "agent-framework-anthropic")


class FakeClient:
    """Answers with the fake summary."""

    async def get_response(self, messages: Any, **_: Any) -> ChatResponse:
        text = fake_model.summary("\n".join(message.text for message in messages))
        return ChatResponse(messages=[Message("assistant", [text])])


class Above:
    """Runs a strategy when the included messages hold more than so many tokens."""

    def __init__(self, tokens: int, strategy: Any) -> None:
        self.tokenizer = CharacterEstimatorTokenizer()
        self.composed = TokenBudgetComposedStrategy(
            token_budget=tokens, tokenizer=self.tokenizer, strategies=[strategy], early_stop=True
        )

    async def __call__(self, messages: list[Message]) -> bool:
        return await self.composed(messages)


class Peer:
    def __init__(
        self, way: str, folder: str, window: int = 200_000, trigger: int = 100_000, **_: Any
    ) -> None:
        del folder
        self.messages: list[Message] = []
        if way == "default":
            self.strategy: Any = ContextWindowCompactionStrategy(
                max_context_window_tokens=window, max_output_tokens=16_384
            )
        elif way == "compact":
            self.strategy = Above(trigger, SummarizationStrategy(client=FakeClient()))
        else:
            self.strategy = Above(
                trigger, ToolResultCompactionStrategy(keep_last_tool_call_groups=5)
            )

    def convert(self, new: list[dict[str, Any]]) -> list[Message]:
        return [made for message in new for made in _converted(message)]

    def append(self, native: list[Message]) -> None:
        self.messages += native

    async def shape(self) -> list[Message]:
        return await apply_compaction(self.messages, strategy=self.strategy)

    def wire(self, shaped: list[Message]) -> list[dict[str, Any]]:
        prepare = RawAnthropicClient._prepare_messages_for_anthropic
        needed = (
            "_prepare_message_groups_for_anthropic",
            "_role_for_anthropic_content_block",
            "_message_has_tool_use",
            "_prepare_message_for_anthropic",
        )
        client = SimpleNamespace()
        for name in needed:
            setattr(client, name, getattr(RawAnthropicClient, name).__get__(client))
        head = (
            [{"role": "system", "content": shaped[0].text}]
            if shaped and shaped[0].role == "system"
            else []
        )
        return [*head, *prepare(client, shaped)]

    def kept(self) -> tuple[dict[str, str], list[str]]:
        return {}, [_text(message) for message in self.messages]


def _text(message: Message) -> str:
    return "\n".join(str(content.to_dict()) for content in message.contents)


def _converted(message: dict[str, Any]) -> list[Message]:
    content = message["content"]
    if isinstance(content, str):
        return [Message(message["role"], [content])]
    results = [
        made for block in content if block["type"] == "tool_result" for made in _contents(block)
    ]
    rest = [
        made for block in content if block["type"] != "tool_result" for made in _contents(block)
    ]
    return [
        *([Message("tool", results)] if results else []),
        *([Message(message["role"], rest)] if rest or not results else []),
    ]


def _contents(block: dict[str, Any]) -> list[Content]:
    match block["type"]:
        case "text":
            return [Content.from_text(block["text"])]
        case "thinking":
            return [
                Content.from_text_reasoning(
                    text=block["thinking"], protected_data=block.get("signature")
                )
            ]
        case "tool_use":
            return [
                Content.from_function_call(block["id"], block["name"], arguments=block["input"])
            ]
        case "tool_result":
            told = block.get("content", "")
            items = (
                told
                if isinstance(told, str)
                else [made for inner in told for made in _contents(inner)]
            )
            failed = "error" if block.get("is_error") else None
            return [
                Content.from_function_result(block["tool_use_id"], result=items, exception=failed)
            ]
        case "image" if block["source"]["type"] == "base64":
            source = block["source"]
            return [Content.from_uri(f"data:{source['media_type']};base64,{source['data']}")]
    return []
