"""ctxpipe, through the same protocol as its peers.

A session is handed the full history each turn.
"""

from __future__ import annotations

import asyncio
import json
from copy import copy
from pathlib import Path
from typing import Any

import fake_model
from driving import as_chat, files_in, texts, versions

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
    TrimReadBacks,
    offload_tools,
    presets,
)
from ctxpipe.adapters.http_client import library_of
from ctxpipe.lab.workbench import SeenFiles
from ctxpipe.stages.compact.stage import Restore
from ctxpipe.storage.memory import MemoryStorage
from ctxpipe.summarizers import AnthropicSummarizer, ExtractiveSummarizer, PromptSummarizer
from ctxpipe.wire import CHAT, Adapter

COUNTER = "tiktoken, exact, each text once"
WAYS = {
    "default": (
        "the README's stages, every default, summaries by AnthropicSummarizer's default request"
    ),
    "coding": "presets.coding_agent, every default",
    "lean": "presets.coding_agent(old_exchanges='lines')",
    "compact": "Compact alone, given trigger",
    "compact, inline": "Compact alone, given trigger, AnthropicSummarizer(mode='inline')",
    "compact, background": "Compact alone, given trigger, background=True",
    "compact, extractive": "Compact alone, given trigger, ExtractiveSummarizer: no model",
    "compact, in memory": "Compact alone, given trigger, archived in MemoryStorage",
    "free": "BatchOffload alone, keep_recent=5: old results to files",
    "free, in memory": "the same, to MemoryStorage",
    "offload": "the same stages, DirectOffload above the given number of characters",
    "both": "presets.coding_agent, compaction at the given trigger",
}
ORIGINALS = {
    "compact": "files",
    "compact, extractive": "files",
    "compact, in memory": "memory",
    "free": "files",
    "free, in memory": "memory",
    "offload": "files",
}
STATE = ("history", "seen")  # as the application keeps it, beside the journal


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("ctxpipe", "tiktoken")


async def ask(prompt: str, _model: str) -> str:
    return fake_model.summary(prompt)


async def ask_in_thread(prompt: str, _model: str) -> str:
    return await asyncio.to_thread(fake_model.summary, prompt)


def inline() -> AnthropicSummarizer:
    """The real SDK over a transport that answers in process."""
    import anthropic

    http = library_of(anthropic)

    def answered(request: Any) -> Any:
        body = json.loads(request.content)
        text = fake_model.summary("\n".join(texts(body["messages"])))
        return http.Response(
            200,
            json={
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": body["model"],
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            },
        )

    sending = http.AsyncClient(transport=http.MockTransport(answered))
    client = anthropic.AsyncAnthropic(api_key="none", http_client=sending)
    return AnthropicSummarizer(client, model="claude-sonnet-5", mode="inline")


class Peer:
    def __init__(
        self,
        way: str,
        folder: str,
        window: int = 200_000,
        trigger: int = 0,
        min_chars: int = 1000,
        form: str = "messages",
        journal: bool = False,
        system: Any = None,
        tools: Any = None,
        **_: Any,
    ) -> None:
        self.folder = Path(folder)
        self.history: list[Any] = []
        self.seen = SeenFiles()
        doing, _, variant = way.partition(", ")
        self.storage: Any = MemoryStorage() if variant == "in memory" else LocalStorage(folder)
        storage = self.storage
        budget = Budget(window=max(window, trigger), trigger=trigger or None)
        write: Any = PromptSummarizer(ask)
        if variant == "inline":
            write = inline()
        if variant == "extractive":
            write = ExtractiveSummarizer()
        if variant == "background":
            write = PromptSummarizer(ask_in_thread)
        compact = Compact(
            write,
            archive=storage,
            restore=Restore(files=self.seen),
            background=variant == "background",
        )
        if way in ("coding", "both", "lean"):
            stages: Any = presets.coding_agent(
                storage,
                work_dir=None,
                old_exchanges="lines" if way == "lean" else "calls",
                summarize=write,
                files=self.seen,
            )
        elif doing == "free":
            stages = [BatchOffload(storage, keep_recent=5)]
        elif doing == "compact":
            stages = [compact]
        else:
            direct = DirectOffload(storage, min_chars=min_chars)
            stages = [
                direct,
                TrimReadBacks(storage),
                BatchOffload(storage),
                compact,
                SmartTruncate(archive=storage),
            ]
        self.options: dict[str, Any] = {}
        self.head = {"system": system, "tools": tools}
        self.pipeline = pipeline = ContextPipeline(stages, budget=budget)
        self.adapter = Adapter(pipeline, "run") if form == "chat" else None
        kept: dict[str, Any] = {"journal": storage, "lease_seconds": 60} if journal else {}
        self.session = pipeline.session("run", **kept)

    def sibling(self) -> Peer:
        """A sub-agent: another conversation of the same session."""
        other = copy(self)
        other.history, other.options, other.session = [], {}, self.pipeline.new_session("run")
        return other

    def convert(self, new: list[dict[str, Any]]) -> list[Any]:
        if self.adapter is not None:
            return [made for message in new for made in as_chat(message)]
        return new

    def append(self, native: list[Any]) -> None:
        for message in native:
            usage = message.pop("usage", None)
            if usage is not None:
                self.session.observe(usage)
        self.history += native
        if self.adapter is None:
            self.seen.learn(native)

    async def shape(self) -> list[Any]:
        if self.adapter is not None:
            exchange = await self.adapter.begin(CHAT.codec, self.history)
            return self.history if exchange is None else list(exchange.items)
        result = await self.session.run(self.history, **self.head)
        self.options = dict(result.request_options)
        return result.messages

    def wire(self, shaped: list[Any]) -> list[Any]:
        return shaped

    def chat(self, shaped: list[Any]) -> list[Any]:
        return shaped

    async def search(self, query: str) -> str:
        tools = {tool.name: tool for tool in offload_tools(self.session)}
        return str(await tools["search_history"]({"query": query}))

    async def forget(self) -> None:
        await self.storage.delete("run")

    def kept(self) -> tuple[dict[str, str], list[str]]:
        return files_in(self.folder), []
