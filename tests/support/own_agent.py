"""An agent as users write one, for tests end to end.

The real SDK, a loopback API, real tools, a history that grows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import anthropic
from histories import tool_result, user
from in_memory import messages_api
from models import MODEL, SUMMARIES

from ctxpipe import Session
from ctxpipe.messages import Message
from ctxpipe.testing import (
    MessagesServer,
    Model,
    Received,
    Reply,
    RequestBody,
    Script,
    answer_with,
    tool_use,
)

__all__ = ["MODEL", "SUMMARIES", "Agent", "Tool", "api", "asked", "call", "playing", "reading"]

Said: TypeAlias = "Reply | Callable[[RequestBody], Reply]"
Tool: TypeAlias = Callable[[Mapping[str, Any]], Any]


def playing(
    replies: Iterable[Said], summary: Said = "What was said, in short."
) -> Callable[[RequestBody], Reply]:
    """A script: *replies* in order for the agent, *summary* whenever one is asked for."""
    rest = iter(replies)

    def reply(body: RequestBody) -> Reply:
        said = summary if body["model"] == SUMMARIES else next(rest, "Done.")
        return said(body) if callable(said) else said

    return reply


@asynccontextmanager
async def api(
    script: Script, **model: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    """The API that plays *script*, and a client for it. Whatever it has refused is an error."""
    async with messages_api(MessagesServer(script, model=Model(**model))) as (server, client):
        yield server, client
    assert [request.problems for request in server.refused] == []


def asked(server: MessagesServer, model: str = MODEL) -> list[Received]:
    """Return the requests to *model*, in order."""
    return [request for request in server.requests if request.body.get("model") == model]


def call(name: str, id: str | None = None, **given: object) -> Reply:  # noqa: A002
    """The model calls a tool."""
    return answer_with(tool_use(name, given, id))


def reading(folder: Path) -> Tool:
    """A tool that reads the file at ``path``: absolute, or below *folder*."""

    def read(given: Mapping[str, Any]) -> str:
        return Path(folder, str(given["path"])).read_text()

    return read


@dataclass
class Agent:
    """A loop that asks the model through *session* and runs the tools that it calls.

    All of it is kept in *history*.
    """

    client: anthropic.AsyncAnthropic
    session: Session
    tools: Mapping[str, Tool] = field(default_factory=dict)
    history: list[Message] = field(default_factory=lambda: [user("Go.")])
    options: Mapping[str, Any] = field(default_factory=dict)

    async def turn(self) -> str:
        """Call the model and its tools once; return the text of the reply."""
        request: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, **self.options}
        reply = await self.session.create(self.client, messages=self.history, **request)
        self.history.append({"role": "assistant", "content": reply.content})
        results = [self._result(block) for block in reply.content if block.type == "tool_use"]
        if results:
            self.history.append(user(*results))
        return "".join(str(block.text) for block in reply.content if block.type == "text")

    async def turns(self, number: int):
        for _ in range(number):
            await self.turn()

    def say(self, words: str):
        self.history.append(user(words))

    def _result(self, block: Any) -> dict[str, Any]:
        content = self.tools[block.name](cast("Mapping[str, Any]", block.input))
        return tool_result(block.id, content)
