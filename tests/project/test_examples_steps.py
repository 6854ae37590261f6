"""The steps of the durable examples: an engine may repeat each of them, on any worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import pytest

from ctxpipe.testing import Failure, MessagesServer, Reply, answer_with, tool_use
from examples.durable.agent import HistoryDiffers, Steps, user_words

FIRST = [user_words(0)]
SECOND = [{"role": "user", "content": "And page 2?"}]
CALL = tool_use("read_page", {"page": 1}, "toolu_1")


class Worker:
    """A worker with a scripted model; ``async with Worker(root, script) as steps``."""

    def __init__(self, root: Path, script: Sequence[Reply]) -> None:
        self.root = root
        self.server = MessagesServer(script)

    async def __aenter__(self) -> Steps:
        await self.server.__aenter__()
        self.client = anthropic.AsyncAnthropic(
            base_url=self.server.url, api_key="test", max_retries=0
        )
        return Steps(str(self.root), self.client)

    async def __aexit__(self, *error: object) -> None:
        await self.client.close()
        await self.server.__aexit__(None, None, None)


async def history_of(steps: Steps) -> list[Any]:
    return [message["content"] for message in await steps.sessions.get("job").history()]


async def test_a_step_that_is_repeated_returns_the_reply_that_was_received(tmp_path):
    worker = Worker(tmp_path, ["One."])
    async with worker as steps:
        first = await steps.ask("job", 0, FIRST)
        again = await steps.ask("job", 0, FIRST)

    assert first == again == [{"type": "text", "text": "One."}]
    assert worker.server.calls == 1


async def test_another_worker_repeats_a_step_without_a_second_request(tmp_path):
    async with Worker(tmp_path, ["One."]) as steps:
        first = await steps.ask("job", 0, FIRST)
    other = Worker(tmp_path, [])
    async with other as steps:
        again = await steps.ask("job", 0, FIRST)

    assert first == again
    assert other.server.calls == 0


async def test_a_step_sends_its_messages_once_however_often_the_model_fails(tmp_path):
    worker = Worker(tmp_path, [Failure(500, "api_error", "broken"), "One.", "Two."])
    async with worker as steps:
        with pytest.raises(anthropic.InternalServerError):
            await steps.ask("job", 0, FIRST)
        await steps.ask("job", 0, FIRST)
        await steps.ask("job", 2, SECOND)
        history = await history_of(steps)

    assert [message["role"] for message in worker.server.requests[-1].body["messages"]] == [
        "user",
        "assistant",
        "user",
    ]
    assert len(history) == 4


async def test_a_step_after_one_of_another_worker_sends_the_whole_conversation(tmp_path):
    async with Worker(tmp_path, ["One."]) as steps:
        await steps.ask("job", 0, FIRST)
    other = Worker(tmp_path, ["Two."])
    async with other as steps:
        await steps.ask("job", 2, SECOND)

    assert len(other.server.requests[0].body["messages"]) == 3


@pytest.mark.parametrize(
    ("position", "messages"), [(4, SECOND), (0, SECOND), (1, SECOND)], ids=["lost", "other", "late"]
)
async def test_a_step_is_refused_if_the_session_has_fewer_or_other_messages(
    position, messages, tmp_path
):
    worker = Worker(tmp_path, ["One."])
    async with worker as steps:
        await steps.ask("job", 0, FIRST)
        with pytest.raises(HistoryDiffers, match="'job' has 2 messages"):
            await steps.ask("job", position, messages)

    assert worker.server.calls == 1


async def test_the_model_can_read_back_what_was_moved_to_a_file(tmp_path):
    async with Worker(tmp_path, [answer_with(CALL), "Done."]) as steps:
        await steps.ask("job", 0, FIRST)
        steps.page_chars = 50_000
        result = await steps.run_tool(CALL)
        await steps.ask("job", 2, [{"role": "user", "content": [result]}])
        [removal] = await steps.sessions.get("job").removals()
        opened = tool_use("read_offloaded", {"path": removal.files[0]}, "toolu_2")
        text = await steps.run_tool(opened)

    assert "page 1" in str(text["content"])
