"""What a bill, an impossible one, or a summary by the server makes of a session's estimate: no compaction too early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from histories import assistant, text, user

from ctxpipe import Compact, ContextPipeline, LocalStorage
from ctxpipe.messages import Message
from ctxpipe.session import Session, observe_stream
from ctxpipe.summarizers import Summary


class Counting:
    """A summariser that counts how often it was paid."""

    def __init__(self) -> None:
        self.paid = 0

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        self.paid += 1
        return Summary(f"{len(messages)} messages")


def compacting(folder: Path) -> tuple[Session, Counting]:
    """A session that compacts at 184,000 tokens, and who writes its summaries."""
    summarize = Counting()
    return ContextPipeline([Compact(summarize, archive=LocalStorage(folder))]).session("s"), summarize


def words(number: int) -> str:
    return "word " * number


SEARCHES = {"server_tool_use": {"web_search_requests": 3}}
BILLS: dict[str, dict[str, Any]] = {
    "the sum of four requests": {"input_tokens": 1_000, "cache_read_input_tokens": 189_000},
    "a sum that is possible, but of searches": {"input_tokens": 120_000, **SEARCHES},
    "its parts": {
        "input_tokens": 190_000,
        "iterations": [{"type": "message", "input_tokens": tokens} for tokens in (60_000, 63_000, 67_000)],
        **SEARCHES,
    },
    "a proxy's": {"input_tokens": 10**15},
    "in characters": {"input_tokens": 250_000},
    "not a number": {"input_tokens": float("nan"), "cache_read_input_tokens": "many"},
}


@pytest.mark.parametrize("name", BILLS)
async def test_a_bill_that_is_not_that_of_the_context_has_nothing_compacted(name: str, tmp_path: Path) -> None:
    session, summarize = compacting(tmp_path)
    history = [user(words(50_000))]

    for _ in range(3):
        await session.run(history)
        session.observe(BILLS[name], model="m")
        history += [assistant("a"), user(words(5_000))]
    result = await session.run(history)

    assert summarize.paid == 0
    assert result.messages == history


SUMMARY_BLOCK = {"type": "compaction", "content": "what went before, in short"}


@pytest.mark.parametrize("summaries", [1, 2])
@pytest.mark.parametrize("bill", [1_000, 5_000])
async def test_what_the_server_has_summarized_does_not_count(summaries: int, bill: int, tmp_path: Path) -> None:
    session, summarize = compacting(tmp_path)
    history = [user("hi"), assistant(words(100_000)), user("more")]
    await session.run(history)
    session.observe({"input_tokens": 105_000}, model="m")
    for _ in range(summaries):
        history += [assistant(SUMMARY_BLOCK, text("ok")), user("go on")]
        await session.run(history)
        session.observe({"input_tokens": bill}, model="m")
        history += [assistant(words(100_000)), user("and now?")]

        result = await session.run(history)

        assert result.messages == history
    assert summarize.paid == 0


async def test_what_a_stream_tells_to_have_been_cleared_was_sent_too(tmp_path: Path) -> None:
    session, _ = compacting(tmp_path)
    history = [user(words(50_000))]
    await session.run(history)
    edits = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_input_tokens": 20_000}]}
    usage = {"input_tokens": 45_000}

    class Stream:
        async def events(self) -> Any:
            yield {"type": "message_start", "message": {"usage": usage, "model": "m"}}
            yield {"type": "content_block_start"}
            yield {"type": "message_delta", "usage": {"output_tokens": 3}, "context_management": edits}

        def __init__(self) -> None:
            self._iterator = self.events()

    stream: Any = Stream()
    observe_stream(stream, lambda begun: session.observe(begun, model=begun["model"]))
    seen = [event["type"] async for event in stream._iterator]

    report = (await session.run([*history, assistant("a"), user("b")])).reports[0]
    assert seen == ["message_start", "content_block_start", "message_delta"]
    assert report.reason.startswith("6500")  # 65,000, and the two new messages
