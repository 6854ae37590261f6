"""Strands: its context manager on a real Agent.

It runs before the model call, as the event loop runs it.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import fake_model
from driving import blocks, files_in, read_back, texts, versions
from strands import Agent
from strands._context_manager.context_manager import ContextManager
from strands._context_manager.retrieval_tool import RETRIEVAL_TOOL_NAME
from strands._context_manager.strategies.offload import Offload
from strands.event_loop.event_loop import _estimate_input_tokens
from strands.hooks import MessageAddedEvent
from strands.models._thinking_binding import is_thinking_binding_error
from strands.models.anthropic import AnthropicModel
from strands.models.model import Model
from strands.models.openai import OpenAIModel
from strands.storage import LocalFileStorage
from strands.tools import PythonAgentTool
from strands.types.content import _ensure_tracking_id

COUNTER = "tiktoken if installed, else characters / 4; anchored on the last bill"
WAYS = {
    "default": (
        'context_manager="auto": results above 1,500 tokens to a preview, summarize at 0.85; stash '
        "in files"
    ),
    "quiet": "the same, its stash in memory as by default",
    "compact": "summarize alone at the given trigger, preserve_recent=4; stash in files",
    "compact, no stash": "the same, stash=False",
    "free": "drop tool results but those of the last 5 messages, above the trigger; stash in files",
    "free, no stash": "the same, stash=False",
    "offload": "truncate results above the given number of characters to a preview, stash in files",
}
ORIGINALS = {
    "compact": "files",
    "compact, no stash": "nowhere",
    "free": "files",
    "free, no stash": "nowhere",
    "offload": "files",
}
STATE = ("saved",)  # what its session managers keep


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("strands-agents")


class FakeModel(Model):
    """Answers with the fake summary."""

    def __init__(self, window: int) -> None:
        self.config = {"context_window_limit": window}

    def update_config(self, **model_config: Any) -> None:
        self.config.update(model_config)

    def get_config(self) -> Any:
        return self.config

    async def structured_output(self, *_: Any, **__: Any) -> Any:
        # the agent loop never asks for it here, and the base class wants it defined
        raise NotImplementedError
        yield

    async def stream(self, messages: Any, *_: Any, **__: Any) -> Any:
        text = fake_model.summary("\n".join(texts(messages)))
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": text}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


class Peer:
    def __init__(
        self,
        way: str,
        folder: str,
        window: int = 200_000,
        trigger: int = 0,
        min_chars: int = 1000,
        system: Any = None,
        tools: Any = None,
        **_: Any,
    ) -> None:
        self.folder = Path(folder)
        doing, _, variant = way.partition(", ")
        stash: Any = {"storage": LocalFileStorage(folder)} if variant != "no stash" else False
        share = trigger / window if trigger else 0.85
        strategies: list[Any] | None = None
        if doing == "compact":
            strategies = [Offload.summarize("*").when(utilization=share, preserve_recent=4)]
        elif doing == "free":
            strategies = [Offload.drop("tool_results").when(utilization=share, preserve_recent=5)]
        elif way == "quiet":
            stash = None
        elif way == "offload":
            strategies = [
                Offload.truncate("tool_results", {"preview_tokens": min(750, min_chars // 8)}).when(
                    threshold=min_chars // 4
                ),
                Offload.summarize("*").when(utilization=0.85, preserve_recent=4),
            ]
        self.manager = ContextManager(strategies=strategies, stash=stash)
        self.agent = Agent(
            model=FakeModel(window),
            messages=[],
            system_prompt="\n".join(block["text"] for block in system or ()) or None,
            tools=[_tool(tool) for tool in tools or ()],
            context_manager=self.manager,
            callback_handler=None,
            load_tools_from_directory=False,
        )
        self.formatter = AnthropicModel(
            client_args={"api_key": "none"},
            model_id="claude-sonnet-5",
            max_tokens=1024,
            params={
                "thinking": {"type": "adaptive"}
            },  # its retry without stale thinking needs thinking configured
        )
        self.pending: list[Any] = []

    def convert(self, new: list[dict[str, Any]]) -> list[Any]:
        return [_converted(message) for message in new]

    async def arrive(self, native: list[Any]) -> None:
        """A message is added to the agent's, and its hooks hear of it."""
        for message in native:
            _ensure_tracking_id(message)  # its stash names texts by it
            self.agent.messages.append(message)
            await self.agent.hooks.invoke_callbacks_async(
                MessageAddedEvent(agent=self.agent, message=message)
            )

    def append(self, native: list[Any]) -> None:
        """Done when they arrived."""

    async def shape(self) -> list[Any]:
        projected = await _estimate_input_tokens(self.agent)
        await self.manager._run_strategies(self.agent, projected)
        return self.agent.messages

    def wire(self, shaped: list[Any]) -> list[dict[str, Any]]:
        return self.formatter._format_request_messages(shaped)

    def chat(self, shaped: list[Any]) -> list[dict[str, Any]]:
        return OpenAIModel.format_request_messages(shaped)

    @property
    def saved(self) -> list[Any]:
        return self.agent.messages

    @saved.setter
    def saved(self, messages: list[Any]) -> None:
        self.agent.messages[:] = messages

    def again(self, refusal: str) -> dict[str, Any]:
        """The same request once more, with stale thinking dropped, as its adapter's `stream`."""
        if not is_thinking_binding_error(Exception(refusal)):
            return {}
        request = {"thinking": self.formatter.get_config()["params"]["thinking"]}
        return self.formatter._request_with_drop_block(request) or {}

    async def forget(self) -> None:
        await self.manager.stash.clear()

    def kept(self) -> tuple[dict[str, str], list[str]]:
        # The context shows a reference, which is the name of the file.
        files = {path.rpartition("/")[2]: text for path, text in files_in(self.folder).items()}
        return files, ["\n".join(texts(message)) for message in self.agent.messages]


def _tool(tool: dict[str, Any]) -> PythonAgentTool:
    """A tool of the Messages API; it is only described, never called."""
    spec = {
        "name": tool["name"],
        "description": tool["description"],
        "inputSchema": {"json": tool["input_schema"]},
    }
    return PythonAgentTool(tool["name"], spec, print)


def _converted(message: dict[str, Any]) -> dict[str, Any]:
    role = "user" if message["role"] == "system" else message["role"]
    made: dict[str, Any] = {"role": role, "content": [_block(block) for block in blocks(message)]}
    usage = message.get("usage")
    if usage:
        told = {"inputTokens": usage["input_tokens"], "outputTokens": usage["output_tokens"]}
        made["metadata"] = {"usage": {**told, "totalTokens": sum(told.values())}}
    return made


def _block(block: dict[str, Any]) -> dict[str, Any]:
    match block["type"]:
        case "thinking":
            told = {"text": block["thinking"], "signature": block["signature"]}
            return {"reasoningContent": {"reasoningText": told}}
        case "redacted_thinking":
            return {"reasoningContent": {"redactedContent": block["data"].encode()}}
        case "tool_use":
            name = RETRIEVAL_TOOL_NAME if read_back(block["id"]) else block["name"]
            return {"toolUse": {"toolUseId": block["id"], "name": name, "input": block["input"]}}
        case "tool_result":
            told = block.get("content", "")
            inner = [{"text": told}] if isinstance(told, str) else [_block(item) for item in told]
            status = "error" if block.get("is_error") else "success"
            return {
                "toolResult": {
                    "toolUseId": block["tool_use_id"],
                    "content": inner,
                    "status": status,
                }
            }
        case "image":
            source = block["source"]
            data = base64.b64decode(source["data"])
            return {
                "image": {"format": source["media_type"].split("/")[1], "source": {"bytes": data}}
            }
    return {"text": block["text"]}
