"""OpenHands SDK: LLMSummarizingCondenser, as the agent's step uses it.

It works on the cached view of the events.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import fake_model
from driving import blocks, versions
from litellm.litellm_core_utils.prompt_templates.factory import anthropic_messages_pt
from openhands.sdk import LLM
from openhands.sdk.agent.utils import prepare_llm_messages
from openhands.sdk.context.condenser import LLMSummarizingCondenser
from openhands.sdk.context.view import View
from openhands.sdk.event import ActionEvent, Condensation, MessageEvent, ObservationEvent
from openhands.sdk.llm import Message, MessageToolCall, TextContent
from openhands.sdk.llm.message import ImageContent, RedactedThinkingBlock, ThinkingBlock
from openhands.sdk.tool import Observation

COUNTER = "events; litellm's tokenizer where tokens are limited"
WAYS = {
    "default": "LLMSummarizingCondenser(): above 240 events down to half, keep the first 2",
    "quiet": "the same with a limit on events that is never reached",
    "compact": "the same with max_tokens = the given trigger",
}
ORIGINALS = {"compact": "memory"}
STATE = ("events", "view", "actions")  # its event store; a view is made of the events


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("openhands-sdk", "litellm")


class FakeLLM(LLM):
    """Answers with the fake summary."""

    def completion(self, messages: Any, *_: Any, **__: Any) -> Any:
        prompt = "\n".join(
            part.text for message in messages for part in message.content if hasattr(part, "text")
        )
        text = fake_model.summary(prompt)
        return SimpleNamespace(
            message=Message(role="assistant", content=[TextContent(text=text)]), id="fake"
        )

    async def acompletion(self, messages: Any, *_: Any, **__: Any) -> Any:
        return self.completion(messages)


class Said(Observation):
    """Result of a tool."""

    @property
    def to_llm_content(self) -> Sequence[Any]:
        return self.content


class Peer:
    def __init__(
        self, way: str, folder: str, window: int = 200_000, trigger: int = 100_000, **_: Any
    ) -> None:
        del folder
        self.llm = FakeLLM(
            model="anthropic/claude-sonnet-5", api_key="none", max_input_tokens=min(window, 10**6)
        )
        limits: dict[str, Any] = {}
        if way == "quiet":
            limits = {"max_size": 10**9}
        elif way == "compact":
            limits = {"max_size": 10**9, "max_tokens": trigger, "minimum_progress": 0.01}
        self.condenser = LLMSummarizingCondenser(llm=self.llm, **limits)
        self.view = View.from_events([])
        self.events: list[Any] = []
        self.actions: dict[str, str] = {}

    def convert(self, new: list[dict[str, Any]]) -> list[Any]:
        return [event for message in new for event in self._events(message)]

    def append(self, native: list[Any]) -> None:
        for event in native:
            self.events.append(event)
            self.view.append_event(event)

    async def shape(self) -> list[Message]:
        for _ in range(4):
            made = prepare_llm_messages(self.view, condenser=self.condenser, llm=self.llm)
            if not isinstance(made, Condensation):
                return made
            self.append([made])
        return prepare_llm_messages(self.view, condenser=None, llm=self.llm)

    def wire(self, shaped: list[Message]) -> list[dict[str, Any]]:
        sent = self.llm.format_messages_for_llm(shaped)
        system = [message for message in sent if message["role"] == "system"]
        rest = [message for message in sent if message["role"] != "system"]
        made = (
            anthropic_messages_pt(rest, model="claude-sonnet-5", llm_provider="anthropic")
            if rest
            else []
        )
        return [*({"role": "system", "content": one["content"]} for one in system), *made]

    def chat(self, shaped: list[Message]) -> list[dict[str, Any]]:
        return FakeLLM(model="openai/gpt-4.1", api_key="none").format_messages_for_llm(shaped)

    def kept(self) -> tuple[dict[str, str], list[str]]:
        return {}, [event.model_dump_json() for event in self.events]

    def _events(self, message: dict[str, Any]) -> list[Any]:
        if message["role"] == "assistant":
            return self._answered(blocks(message))
        results = [
            self._observed(block) for block in blocks(message) if block["type"] == "tool_result"
        ]
        rest = _contents([block for block in blocks(message) if block["type"] != "tool_result"])
        role = message["role"]
        source = "user" if role == "user" else "environment"
        said = (
            [MessageEvent(source=source, llm_message=Message(role=role, content=rest))]
            if rest
            else []
        )
        return [*results, *said]

    def _answered(self, said: list[dict[str, Any]]) -> list[Any]:
        texts = _contents([block for block in said if block["type"] in ("text", "image")])
        thoughts = [_thought(block) for block in said if "thinking" in block["type"]]
        calls = [block for block in said if block["type"] == "tool_use"]
        if not calls:
            message = Message(role="assistant", content=texts, thinking_blocks=thoughts)
            return [MessageEvent(source="agent", llm_message=message)]
        events = []
        for place, call in enumerate(calls):
            made = MessageToolCall(
                id=call["id"],
                name=call["name"],
                arguments=json.dumps(call["input"]),
                origin="completion",
            )
            event = ActionEvent(
                thought=[] if place else texts,
                thinking_blocks=[] if place else thoughts,
                action=None,
                tool_name=call["name"],
                tool_call_id=call["id"],
                tool_call=made,
                llm_response_id=f"reply-{calls[0]['id']}",
            )
            self.actions[call["id"]] = event.id
            events.append(event)
        return events

    def _observed(self, block: dict[str, Any]) -> Any:
        told = block.get("content", "")
        parts = [TextContent(text=told)] if isinstance(told, str) else _contents(told)
        call = block["tool_use_id"]
        return ObservationEvent(
            observation=Said(content=parts, is_error=bool(block.get("is_error"))),
            action_id=self.actions.get(call, "unknown"),
            tool_name="tool",
            tool_call_id=call,
        )


def _thought(block: dict[str, Any]) -> Any:
    if block["type"] == "redacted_thinking":
        return RedactedThinkingBlock(data=block["data"])
    return ThinkingBlock(thinking=block["thinking"], signature=block["signature"])


def _contents(told: list[dict[str, Any]]) -> list[Any]:
    made: list[Any] = []
    for block in told:
        if block["type"] == "image":
            source = block["source"]
            made.append(
                ImageContent(image_urls=[f"data:{source['media_type']};base64,{source['data']}"])
            )
        elif block["type"] == "text":
            made.append(TextContent(text=block["text"]))
    return made
