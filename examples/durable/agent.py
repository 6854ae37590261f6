"""The steps of a durable agent, for any engine: a model call, and a call of a tool.

An engine stores what its steps receive or return. So `Steps.ask` takes a session's name and the new
messages; the session has the history in its journal. `Steps.ask_with_history` is the same step
without ctxpipe: it takes every message in every call.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic

from ctxpipe import ContextPipeline, LocalStorage, Session, Sessions, Tool, offload_tools, presets
from ctxpipe.testing import MessagesServer, Model, Reply, RequestBody, answer_with, tool_use
from ctxpipe.tools import answer

JsonDict = dict[str, Any]
"""A message, or a block of one, with types of JSON only."""

MODEL = "claude-opus-5"
CALLS = 100
RESULT_CHARS = 4_000
LINE = "a line of a long page\n"


class HistoryDiffers(RuntimeError):
    """Raised if the session does not have the messages that the engine has sent before."""


class Steps:
    """Steps that a worker runs. Workers that share the journal may run any step of any session.

    *root* is the folder of the journal and of offloaded texts; workers on several machines need a
    journal that all of them reach. *client* leaves retries to the engine (``max_retries=0``), and
    its ``timeout`` ends an attempt before the engine starts the next one. The tool returns pages of
    *page_chars* characters. *call_count* is the number of requests to the model.
    """

    def __init__(
        self, root: str, client: anthropic.AsyncAnthropic, page_chars: int = RESULT_CHARS
    ) -> None:
        storage = LocalStorage(root)
        pipeline = ContextPipeline(presets.coding_agent(storage, work_dir=None))
        self.sessions = Sessions(pipeline, journal=storage)
        self.client = client
        self.page_chars = page_chars
        self.call_count = 0
        schema: Any = {"type": "object", "properties": {"page": {"type": "integer"}}}
        read_page = Tool({"name": "read_page", "input_schema": schema}, self.read_page)
        self.tools = [read_page, *offload_tools(storage)]
        self.request: Any = {
            "model": MODEL,
            "max_tokens": 4096,
            "tools": [tool.definition for tool in self.tools],
            "cache_control": {"type": "ephemeral"},
        }

    async def ask(
        self, session_id: str, position: int, messages: Sequence[JsonDict]
    ) -> list[JsonDict]:
        """Return the content of the model's reply to the new *messages*.

        *position* is the number of messages that the engine has sent and received before. It makes
        the step safe to repeat: messages that an earlier attempt has written are not appended
        again, and a reply that it has received is not requested again.

        Raises HistoryDiffers if the session has fewer or other messages.
        """
        session = self.sessions.get(session_id)
        try:
            written = await written_messages(session, position, messages)
            if len(written) > len(messages):
                content: list[JsonDict] = written[len(messages)]["content"]
                return content
            session.append(*messages[len(written) :])
            self.call_count += 1
            reply = await session.create(self.client, **self.request)
        except BaseException:
            # The next attempt must not send what this one has appended, and not written.
            self.sessions.forget(session_id)
            raise
        return content_of(reply)

    async def ask_with_history(self, messages: Sequence[JsonDict]) -> list[JsonDict]:
        """Return the content of the model's reply to the whole history, without ctxpipe."""
        self.call_count += 1
        request = {**self.request, "messages": messages}
        return content_of(await self.client.messages.create(**request))

    async def run_tool(self, call: JsonDict) -> JsonDict:
        """Return the tool_result block for *call*, a tool_use block."""
        block: Any = call
        return as_json(await answer(block, self.tools))

    async def read_page(self, arguments: Mapping[str, Any]) -> str:
        """Run the tool: return a page that begins with its number."""
        text = f"page {arguments['page']}\n" + LINE * (self.page_chars // len(LINE))
        return text[: self.page_chars]


async def written_messages(
    session: Session, position: int, messages: Sequence[JsonDict]
) -> list[JsonDict]:
    """Return what earlier attempts have written after message *position*.

    Raises HistoryDiffers if it does not begin like *messages*, or if earlier messages are missing.
    """
    history = as_json(await session.history())
    written: list[JsonDict] = history[position:]
    common = min(len(written), len(messages))
    if len(history) < position or written[:common] != list(messages[:common]):
        raise HistoryDiffers(
            f"session {session.session_id!r} has {len(history)} messages, and not those that the "
            f"engine sends from message {position} on"
        )
    return written


def content_of(reply: anthropic.types.Message) -> list[JsonDict]:
    """Return the content of *reply*, with types of JSON only."""
    content: list[JsonDict] = as_json(reply.to_dict()["content"])
    return content


def calls_in(content: Sequence[JsonDict]) -> list[JsonDict]:
    """Return the tool calls in the content of a reply."""
    return [block for block in content if block["type"] == "tool_use"]


def as_json(value: Any) -> Any:
    """Return a copy of *value* that has only types of JSON."""
    return json.loads(json.dumps(value))


# The model ----------------------------------------------------------------------------------------


def user_words(page: int) -> JsonDict:
    """Return the message in which the user asks for the pages after *page*."""
    return {"role": "user", "content": f"Go on after page {page}."}


def scripted_model(calls_in_turn: int) -> Callable[[RequestBody], Reply]:
    """Return a model that reads a page in each call, and answers each *calls_in_turn* calls."""

    def reply(body: RequestBody) -> Reply:
        newest = re.search(r"page (\d+)", str(list(body.get("messages", []))[-1]["content"]))
        page = int(newest[1]) + 1 if newest else 1
        if page % calls_in_turn == 0:
            return answer_with(f"I have read everything before page {page}.")
        return answer_with(f"Page {page} is next.", tool_use("read_page", {"page": page}))

    return reply


@asynccontextmanager
async def scripted_client(calls_in_turn: int) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Yield a client of the scripted model, which runs in this process."""
    async with (
        MessagesServer(scripted_model(calls_in_turn), model=Model(window=10_000_000)) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        yield client


def print_sizes(engine: str, calls: int, plain_bytes: int, ctxpipe_bytes: int) -> None:
    """Print the size of an engine's history without and with ctxpipe."""
    print(
        f"{engine}, {calls} model calls: {plain_bytes:,} bytes of history without ctxpipe, "
        f"{ctxpipe_bytes:,} with it (factor {plain_bytes / ctxpipe_bytes:.1f})"
    )
